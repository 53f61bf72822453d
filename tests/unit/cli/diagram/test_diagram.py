"""`assay map` draws what is there: the parts of the package, and the agent's compiled graph."""

import xml.etree.ElementTree as ET
from itertools import combinations

import grimp
import pytest

from assay.agent.graph import STEPS, describe_passages
from assay.cli.diagram.command import package_parts, part_of, picture_of_agent, picture_of_parts
from assay.cli.diagram.formats import to_mermaid, to_svg, to_text
from assay.cli.diagram.picture import Arrow, Node, Picture, is_waypoint, layered, without_shortcuts
from assay.models.resolve import Availability
from assay.settings.load import Settings

SVG = "{http://www.w3.org/2000/svg}"
USABLE = Availability(name="local:<b>&", title="x", usable=True, reason='"here"', by_auto=True)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - we have just written it


def a_picture(*arrows: str) -> Picture:
    pairs = [arrow.split(">") for arrow in arrows]
    names = dict.fromkeys(name for pair in pairs for name in pair)
    return Picture(
        title="A picture",
        nodes=tuple(Node(id=name, title=name) for name in names),
        arrows=tuple(Arrow(source=source, target=target) for source, target in pairs),
    )


def test_parts_and_arrows_are_those_of_the_package() -> None:
    graph = grimp.build_graph("assay", cache_dir=None)
    real = {
        (part_of(importer), part_of(imported))
        for upper in graph.modules
        for lower in graph.find_modules_directly_imported_by(upper)
        if (importer := [*upper.split("."), ""][1])
        and (imported := [*lower.split("."), ""][1])
        and not importer.startswith("_")
        and not imported.startswith("_")
    }

    nodes, arrows = package_parts()

    found = {(arrow.source, arrow.target) for arrow in arrows}
    assert found == {(one, other) for one, other in real if one != other}
    modules = {name.split(".")[1] for name in graph.modules if name.count(".")}
    assert {node.id for node in nodes} == {
        part_of(name) for name in modules if not name.startswith("_")
    }


def test_every_part_says_what_it_is_for() -> None:
    nodes, _ = package_parts()

    assert [node.id for node in nodes if len(node.about) < 10] == []


def test_the_graph_of_the_agent_is_the_compiled_one() -> None:
    picture = picture_of_agent()

    drawn = {(arrow.source, arrow.target, arrow.label) for arrow in picture.arrows}
    compiled = {
        (each.source or "begin", each.target or "end", each.condition.removeprefix("next"))
        for each in describe_passages()
    }
    *early, last = STEPS
    assert compiled - drawn == {(step, "end", "over") for step in early}
    assert drawn - compiled == set()
    assert (last, "end", "over") in drawn
    assert [node.id for node in picture.nodes] == ["begin", *STEPS, "end"]
    assert all(node.about for node in picture.nodes if node.kind == "step")


def test_what_is_set_up_is_drawn_around_the_parts() -> None:
    settings = Settings.model_validate(
        {
            "models": {"default": "groq:x"},
            "tools": {"mcp": {"notes": {"command": ["notes"], "env": {"KEY": "very-secret"}}}},
        }
    )

    picture = picture_of_parts(settings, (USABLE,))

    outside = {node.title for node in picture.nodes if node.kind == "outside"}
    assert {"backend native", "local:<b>&", "groq:x", "MCP server notes"} <= outside
    for drawn in (to_svg([picture]), to_mermaid([picture]), to_text([picture])):
        assert "very-secret" not in drawn


def test_shortcuts_are_left_out_and_nothing_else() -> None:
    picture = a_picture("a>b", "b>c", "a>c", "a>d", "d>c")

    left = {(arrow.source, arrow.target) for arrow in without_shortcuts(picture.arrows)}

    assert left == {("a", "b"), ("b", "c"), ("a", "d"), ("d", "c")}


def test_arrows_point_down_and_long_ones_pass_every_row() -> None:
    layers = layered(a_picture("a>b", "b>c", "c>d", "a>d"))

    row = {name: number for number, names in enumerate(layers.rows) for name in names}
    for _, passed in layers.ways:
        assert [row[name] for name in passed] == list(range(row[passed[0]], row[passed[-1]] + 1))
    assert sum(is_waypoint(name) for name in row) == 2


def test_a_circle_is_closed_by_an_arrow_that_returns() -> None:
    layers = layered(a_picture("a>b", "b>c", "c>b", "c>d"))

    assert [(arrow.source, arrow.target) for arrow in layers.back] == [("c", "b")]
    assert layers.is_chain


def boxes_in(svg: str) -> list[tuple[float, float, float, float]]:
    found = [each for each in parsed(svg).iter(f"{SVG}rect") if "box" in each.get("class", "")]
    return [
        tuple(float(each.get(name, "0")) for name in ("x", "y", "width", "height"))
        for each in found
    ]


def all_pictures() -> list[Picture]:
    return [picture_of_parts(Settings(), (USABLE,)), picture_of_agent()]


def test_boxes_do_not_lie_on_each_other_and_are_inside_the_paper() -> None:
    svg = to_svg(all_pictures())

    root = parsed(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = boxes_in(svg)
    assert len(boxes) == sum(len(picture.nodes) for picture in all_pictures())
    for x, y, wide, high in boxes:
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(boxes, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1


def test_every_arrow_is_drawn() -> None:
    pictures = all_pictures()
    wanted = sum(len(picture.arrows) for picture in pictures)

    paths = list(parsed(to_svg(pictures)).iter(f"{SVG}path"))
    lines = [line for line in to_mermaid(pictures).splitlines() if "->" in line]

    assert len([path for path in paths if "arrow" in path.get("class", "")]) == wanted
    assert len(lines) == wanted


def test_a_drawing_has_colours_for_dark_surroundings_and_needs_nothing_from_elsewhere() -> None:
    svg = to_svg(all_pictures())

    assert "prefers-color-scheme: dark" in svg
    assert svg.count("http") == 1  # the name of the format
    assert "<script" not in svg


@pytest.mark.parametrize("name", ['"]; click x', "<script>", "a#b", "end"])
def test_names_cannot_become_something_else(name: str) -> None:
    picture = Picture(
        title=name,
        nodes=(Node(id=name, title=name, about=name), Node(id="b", title="b")),
        arrows=(Arrow(source=name, target="b", label=name),),
    )

    parsed(to_svg([picture]))
    text = to_mermaid([picture])

    assert "<script>" not in text
    assert text.count('"') == 8


@pytest.mark.parametrize("width", [20, 60, 100, 160])
def test_boxes_of_text_are_whole(width: int) -> None:
    lines = to_text(all_pictures(), width=width).splitlines()

    for line in lines:
        corners = sum(line.count(corner) for corner in "┌╭└╰")
        assert corners == sum(line.count(corner) for corner in "┐╮┘╯") or "─ again ─" in line
    rows = [line for line in lines if line.startswith(("  │", "  ┌", "  └"))]
    assert all(line.endswith(("│", "┐", "┘", "╮", "╯")) for line in rows)


def test_a_chain_shows_what_returns_where() -> None:
    line, arrow, back, *_ = to_text([picture_of_agent()]).splitlines()[2:]

    assert line.split(" ─▶ ")[0].strip() == "goal"
    assert line[arrow.index("▲") - 1 : arrow.index("▲") + 2] in "code"
    assert line[arrow.index("│") - 1 : arrow.index("│") + 2] in "reflect"
    assert " again " in back
