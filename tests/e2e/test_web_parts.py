"""The parts of the web page that only compute, each by itself, in a real browser."""

from collections.abc import Callable, Generator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import open_window
from tests.support.sources import PACKAGE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WEB = PACKAGE / "server" / "web"
Call = Callable[..., Any]
NAMES = [("dom.js", "http://"), ("icon.svg", "http://")]
"""The namespace of SVG is a name, not an address."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        del format, args


@pytest.fixture(scope="module")
def origin() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(WEB)))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def page(
    browser: "Browser", origin: str, tmp_path_factory: pytest.TempPathFactory
) -> "Generator[Page]":
    with open_window(browser, origin, tmp_path_factory.mktemp("shots")) as window:
        window.page.goto(f"{origin}icon.svg")
        yield window.page


@pytest.fixture(scope="module")
def call(page: "Page") -> Call:
    """Call a function of a module with plain values."""

    def call(module: str, function: str, *values: object) -> Any:
        return page.evaluate(
            "async ([module, name, values]) => (await import(`/${module}`))[name](...values)",
            [f"{module}.js", function, list(values)],
        )

    return call


def kinds(blocks: list[dict[str, Any]]) -> list[str]:
    return [block["kind"] for block in blocks]


def test_markdown_is_told_apart_by_blocks(call: Call) -> None:
    text = "# Title\n\nwords\non two lines\n\n- one\n  - deep\n- two\n\n> said\n\n---\n\n"
    text += "```py\nx = 1\n```\n|a|b|\n|-|-:|\n|1|2|"
    blocks = call("markdown", "parseBlocks", text)
    assert kinds(blocks) == ["heading", "paragraph", "list", "quote", "rule", "code", "table"]
    assert blocks[2]["items"][0]["blocks"][1]["kind"] == "list"
    assert (blocks[5]["language"], blocks[5]["text"]) == ("py", "x = 1")
    assert blocks[6]["align"] == ["left", "right"]


def test_a_fence_that_is_still_open_is_code_already(call: Call) -> None:
    (block,) = call("markdown", "parseBlocks", "```python\nprint(1)\nprint(")
    assert (block["kind"], block["text"]) == ("code", "print(1)\nprint(")


def test_headings_are_numbered_without_gaps(page: "Page") -> None:
    text = "### a\n\n##### b\n\n> ###### c\n\n- # d\n\n#### e"
    depths = page.evaluate(
        """async (text) => {
          const { outlined, parseBlocks } = await import("/markdown.js");
          const found = [];
          const walk = (blocks) => blocks.forEach((each) => {
            if (each.kind === "heading") found.push([each.text, each.depth]);
            (each.items ?? [each]).forEach((inner) => inner.blocks && walk(inner.blocks));
          });
          walk(outlined(parseBlocks(text)));
          return found;
        }""",
        text,
    )
    assert depths == [["a", 0], ["b", 1], ["c", 2], ["d", 0], ["e", 1]]


def test_what_is_read_aloud_has_no_marks(call: Call) -> None:
    text = "## It is **done**\n\n- one [link](https://a.example)\n- `two`\n\n|a|b|\n|-|-|\n|*1*|2|"
    blocks = call("markdown", "parseBlocks", text)
    assert call("markdown", "plainText", blocks) == "It is done one link; two a, b. 1, 2."


def test_html_in_markdown_is_text(call: Call) -> None:
    (block,) = call("markdown", "parseBlocks", "<script>alert(1)</script>")
    assert call("inline", "parseInline", block["text"]) == ["<script>alert(1)</script>"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**bold** and *thin*", ["strong", " and ", "em"]),
        ("`a * b * c`", ["code"]),
        ("snake_case_name", ["snake_case_name"]),
        ("2 * 3 * 4", ["2 * 3 * 4"]),
        ("**never closed", ["**never closed"]),
        ("[text](https://a.example/x_(y))", ["link"]),
        ("see https://a.example/b.", ["see ", "link", "."]),
        (r"\*not thin\*", ["*not thin*"]),
    ],
)
def test_marks_within_a_line(call: Call, text: str, expected: list[str]) -> None:
    parts = call("inline", "parseInline", text)
    assert [part if isinstance(part, str) else part["kind"] for part in parts] == expected


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        " JaVaScRiPt:alert(1)",
        "java\nscript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "vbscript:x",
        "file:///etc/passwd",
        "blob:https://a.example/1",
        "//a.example/x",
        "/v1/keys",
        "#/s/other",
    ],
)
def test_links_lead_nowhere_but_to_http_and_https(call: Call, address: str) -> None:
    assert call("inline", "safeAddress", address) is None


def test_what_nests_or_repeats_without_end_is_read_in_good_time(call: Call) -> None:
    for text in (
        "*" * 50_000,
        "[" * 50_000,
        "> " * 20_000,
        "`" * 50_001 + "x",
        "- " * 20_000,
        "_a" * 50_000,
        "![](" * 20_000,
    ):
        for block in call("markdown", "parseBlocks", text):
            call("inline", "parseInline", block.get("text", ""))


@pytest.mark.parametrize(
    "language", ["python", "js", "rust", "sh", "json", "sql", "toml", "cpp", "unknown", "__proto__"]
)
def test_colouring_changes_nothing_of_the_code(call: Call, language: str) -> None:
    code = 'def f(x): # a \'comment\n  return f"{x!r}\\" 0x1F 1e-3 \U0001f600 '
    code += '"""open\n $HOME --flag /* c'
    tokens = call("highlight", "tokenise", code, language)
    assert "".join(text for _, text in tokens) == code


def test_words_of_python_are_told_apart(call: Call) -> None:
    tokens = call(
        "highlight",
        "tokenise",
        "@cache\ndef area(r): return 3.14 * r  # m2\nprint('π', None)",
        "python",
    )
    told = {text: kind for kind, text in tokens if kind}
    assert told["@cache"] == "meta"
    assert (told["def"], told["area"], told["3.14"], told["# m2"]) == (
        "keyword",
        "call",
        "number",
        "comment",
    )
    assert (told["print"], told["'π'"], told["None"]) == ("builtin", "string", "constant")


def test_events_are_read_however_the_stream_is_cut(page: "Page") -> None:
    stream = ': hello\r\n\r\nid: 7\r\nevent: turn_started\r\ndata: {"turn":\r\ndata: 1}\r\n\r\n'
    stream += "event: end\ndata: {}\n\ndata: no json\n\n"
    read = """async ([module, text, size]) => {
      const { EventReader } = await import(module);
      const reader = new EventReader();
      const events = [];
      for (let at = 0; at < text.length; at += size) {
        events.push(...reader.read(text.slice(at, at + size)));
      }
      return events;
    }"""
    for size in (1, 2, 3, 7, 1000):
        events = page.evaluate(read, ["/stream.js", stream, size])
        assert events == [
            {"id": 7, "kind": "turn_started", "data": {"turn": 1}},
            {"id": None, "kind": "end", "data": {}},
        ]


def test_waiting_grows_and_has_an_end(call: Call) -> None:
    waits = [call("stream", "backoff", failures, 0.5) for failures in (0, 1, 2, 20)]
    assert waits == sorted(waits)
    assert waits[-1] == 8000


def test_the_table_of_a_program_is_read_and_nothing_else_of_its_html(call: Call) -> None:
    html = """<style>td{}</style><table onclick="alert(1)"><thead>
      <tr><th></th><th>price</th></tr></thead>
      <tbody><tr><th>0</th><td>1 &lt; 2 &amp;c<script>alert(1)</script></td></tr>
      <tr><th>1</th><td><img src=x onerror=alert(1)>b</td></tr></tbody></table><p>after</p>"""
    table = call("html_tables", "readTable", html)
    assert table == {"head": ["", "price"], "rows": [["0", "1 < 2 &c"], ["1", "b"]], "index": 1}
    assert call("html_tables", "readTable", "<p>no table</p>") is None


def test_a_diff_is_told_by_files_and_numbered_lines(call: Call) -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@ def f\n same\n-old\n+new\n"
    diff += "--- /dev/null\n+++ b/y.py\n@@ -0,0 +1 @@\n+++ not a header\n"
    changed, added = call("diff", "parseDiff", diff)
    assert (changed["path"], changed["added"], changed["removed"]) == ("x.py", 1, 1)
    assert [(line["old"], line["now"]) for line in changed["lines"][1:]] == [
        (1, 1),
        (2, None),
        (None, 2),
    ]
    assert added["path"] == "y.py"
    assert added["lines"][-1]["text"] == "++ not a header"


def test_the_test_matrix_says_what_was_fixed_and_what_regressed(call: Call) -> None:
    test_matrix = {
        "tests": ["a", "b"],
        "attempts": [1, 2, 3],
        "cells": [["failed", "passed", "failed"], ["error", "error", "passed"]],
    }
    assert call("test_matrix", "summary", test_matrix) == (
        "2 tests, 3 attempts: 1 of 2 passed in the last one; 2 fixed and 1 regressed on the way"
    )
    turned = {
        **test_matrix,
        "cells": [["failed", "error"], ["passed", "error"], ["failed", "passed"]],
    }
    assert call("test_matrix", "byTest", turned)["cells"] == test_matrix["cells"]
    assert (
        call("test_matrix", "shortName", "tests/test_a.py::test_long_name", 16) == "test_long_name"
    )


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("bytes", 999, "999 B"),
        ("bytes", 1_234_567, "1.2 MB"),
        ("tokens", 12_400, "12k"),
        ("money", None, "price unknown"),
        ("money", 0.004, "< $0.01"),
        ("seconds", 0.042, "42 ms"),
        ("seconds", 86, "1 min 26 s"),
        ("seconds", 7200, "2 h"),
    ],
)
def test_numbers_read_well(call: Call, function: str, value: float | None, expected: str) -> None:
    assert call("format", function, value) == expected


def test_the_page_needs_no_code_from_elsewhere_and_parses_no_html() -> None:
    texts = {path: path.read_text() for path in WEB.iterdir()}
    banned = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "http://",
    )
    found = [(path.name, word) for path, text in texts.items() for word in banned if word in text]
    assert [each for each in found if each not in NAMES] == []
    assert [path.name for path in texts if len(texts[path].splitlines()) > 300] == []
