"""The first message in whole runs: project instructions, baseline failures, fresh attempts."""

from collections.abc import Iterator
from pathlib import Path

import anyio

from assay.contracts.events import Planned
from assay.contracts.goal import RunLimits, RunRequest, RunResult
from assay.contracts.messages import Reply, Request
from assay.contracts.ports import OnText, ignore_text
from assay.runs.request import RunCallbacks
from assay.runs.runner import Lent, start_run
from assay.wiring import open_backend
from tests.doubles.scripted_model import ScriptedModel, calls_tool
from tests.support.undertakings import settings_in

TEST = """\
from shapes import area, border


def test_area():
    assert area(2, 3) == 6


def test_border():
    assert border(2, 3) == 10


def test_zero():
    assert area(0, 3) == 0
"""
CODE = "def area(w, h):\n    return w + h\n\n\ndef border(w, h):\n    return w + h\n"


def replies(*edits: tuple[str, str]) -> Iterator[Reply]:
    """Yield an edit and `done` for each attempt."""
    for number, (old, new) in enumerate(edits):
        arguments = {"path": "shapes.py", "search": old, "replace": new}
        yield calls_tool("edit_file", arguments, call_id=f"edit_{number}")
        yield calls_tool("done", {}, call_id=f"done_{number}", text=f"attempt {number}")


class Recorder(ScriptedModel):
    """A scripted model that ignores requests without tools."""

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        if not request.tools:
            return await ScriptedModel([calls_tool("plan", text="1. work")]).reply(request)
        return await super().reply(request, on_text=on_text)


async def run_goal(folder: Path, model: ScriptedModel, **files: str) -> tuple[RunResult, str]:
    """Run a goal and return its result with the instructions in the plan event."""
    workspace = folder / "workspace"
    for name, text in {"shapes.py": CODE, "test_shapes.py": TEST, **files}.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    settings = settings_in(folder)
    named: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Planned):
            named.append(event.instructions)

    request = RunRequest(
        goal="# Bug\nThe area is wrong.",
        workspace=workspace,
        # Named tests must pass, even if they failed before in the same way.
        tests=("test_shapes.py",),
        model="recorded",
        memory="off",
        limits=RunLimits(attempts=3, repairs=1),
    )
    with anyio.fail_after(240):
        async with open_backend(settings.sandbox, on_notice=print) as backend:
            result = await start_run(
                request,
                settings,
                RunCallbacks(listeners=(listen,)),
                lent=Lent(backend=backend, model=model),
            )
    return result, named[0]


def first_of(model: ScriptedModel, number: int) -> str:
    """Return the first message of the conversation with this number."""
    begun = [request for request in model.asked if len(request.messages) == 2]
    return begun[number].messages[1].text


async def test_a_run_begins_with_its_check_its_failures_and_its_instructions(
    tmp_path: Path,
) -> None:
    fixed = CODE.replace("return w + h", "return w * h", 1).replace(
        "    return w + h\n", "    return 2 * (w + h)\n"
    )
    model = Recorder(replies((CODE, fixed)))

    result, named = await run_goal(tmp_path, model, **{".assay/instructions.md": "Use tabs."})

    text = first_of(model, 0)
    assert result.accepted
    assert named == ".assay/instructions.md"
    assert "Use tabs." in text
    assert "<goal>\n# Bug" in text
    assert "```bash\npytest test_shapes.py\n```" in text
    assert "3 of 3 tests failed" in text
    assert "def test_border" in text
    assert "File to write" not in text


async def test_a_link_is_no_source_of_instructions(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("outside")
    folder = tmp_path / "workspace" / ".assay"
    folder.mkdir(parents=True)
    (folder / "instructions.md").symlink_to(secret)
    model = Recorder(replies((CODE, "x = 1\n"), ("x = 1", "x = 2"), ("x = 2", "x = 3")))

    _, named = await run_goal(tmp_path, model)

    assert named == ""
    assert "outside" not in first_of(model, 0)


async def test_a_fresh_attempt_starts_from_the_change_and_failures_of_its_base(
    tmp_path: Path,
) -> None:
    area, border = "def area(w, h):\n    return ", "def border(w, h):\n    return "
    model = Recorder(
        replies(
            (f"{area}w + h", f"{area}w * h"),
            (f"{border}w + h", f"{border}2 + w + h"),
            (f"{border}w + h", f"{border}2 * (w + h)"),
        )
    )

    result, _ = await run_goal(tmp_path, model)

    assert result.accepted
    assert result.attempts == 3
    fresh = first_of(model, 1)
    assert "# The change of the best attempt" in fresh
    assert "+    return w * h" in fresh
    assert "3 of 3 tests failed" not in fresh
    assert "1 of 3 tests failed" in fresh
    assert "def test_border" in fresh
