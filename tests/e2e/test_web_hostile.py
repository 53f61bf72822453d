"""Whatever a program or a model says, the web page shows it and runs nothing of it."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support.chromium import Window, ask, open_window
from tests.support.web_server import WebServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

ATTACKS = (
    "<script>window.hurt = 'script'</script>",
    "<img src=x onerror=\"window.hurt = 'onerror'\">",
    "<svg onload=\"window.hurt = 'svg'\"></svg>",
    "<iframe srcdoc=\"<script>parent.hurt = 'iframe'</script>\"></iframe>",
    "<details open ontoggle=\"window.hurt = 'toggle'\">",
    "[click](javascript:window.hurt='link')",
    "![x](javascript:window.hurt='image')",
    "![seen](https://spy.example/pixel.png)",
    "<https://spy.example/\" onmouseover=\"window.hurt='angle'>",
    "[a](https://ok.example/\"onclick=\"window.hurt='quote')",
    "| <b onclick=\"window.hurt='cell'\">x</b> |\n|---|\n| <script>window.hurt = 'td'</script> |",
    "`<script>window.hurt = 'code'</script>`",
    "<style>* { display: none }</style>",
    "<base href='https://spy.example/'>",
    "<meta http-equiv=refresh content='0;url=https://spy.example/'>",
    "<form action='https://spy.example/'><button>go</button></form>",
    "</div></article><script>window.hurt = 'closing'</script>",
)
SHOWN = """
class Table:
    def _repr_html_(self):
        return "<table onclick=\\"window.hurt='table'\\"><tr>" \\
            "<th>a<script>window.hurt='th'</script></th></tr>" \\
            "<tr><td><img src=x onerror=\\"window.hurt='td'\\">cell</td></tr></table>"
    def __repr__(self):
        return "<script>window.hurt = 'repr'</script>"

Table()
"""
WRITTEN = """
svg = '<svg xmlns="http://www.w3.org/2000/svg" onload="window.hurt=1">'
svg += '<script>window.hurt = 1</script></svg>'
for name in ('picture.svg', 'picture.png', "<img src=x onerror=window.hurt=1>.txt"):
    open(name, 'w').write(svg)
"""
FLOOD = "for n in range(200000): print(n, '<script>window.hurt = 1</script>' * 5)"
ESCAPES = (
    "print('\\x1b[31mred\\x1b[0m \\x00 \\u202edrow \\ud83d'.encode('utf-8', 'replace').decode())"
)


def cell(code: str, thought: str = "") -> str:
    return f"{thought}\n\n```python\n{code.strip()}\n```"


EVERYTHING = "\n\n".join(ATTACKS)
REPLIES = {
    "said": [cell(f"print({json.dumps(EVERYTHING)})", EVERYTHING), EVERYTHING],
    "shown": [cell(SHOWN), "Shown."],
    "written": [cell(WRITTEN), "Written."],
    "flood": [cell(FLOOD), "word " * 45_000],
    "escapes": [cell(ESCAPES), "Escaped."],
    "<u>title</u>": ["Named."],
}


@pytest.fixture
def window(window: Window) -> Generator[Window]:
    yield window
    assert window.page.evaluate("window.hurt") is None


def ask_and_wait(page: "Page", message: str) -> None:
    ask(page, message)
    page.locator(".turn-foot").last.wait_for()


FOREIGN = "main :is(script, iframe, object, embed, style, base, meta, link, form:not(.composer))"


def test_what_is_said_and_printed_is_text(window: Window) -> None:
    page = window.page
    ask_and_wait(page, "said")
    expect(page.locator(FOREIGN)).to_have_count(0)
    expect(page.locator("main img")).to_have_count(0)
    said = page.locator(".answer").inner_text()
    for attack in ("window.hurt = 'script'", "onerror=", "<iframe srcdoc", "closing"):
        assert attack in said
        assert attack in page.locator(".observation").inner_text()
    targets = page.locator("main .prose a").evaluate_all(
        "links => links.map((link) => [link.protocol, link.rel, link.getAttributeNames().length])"
    )
    assert targets
    assert all(protocol in {"http:", "https:"} for protocol, _, _ in targets)
    assert all("noopener" in rel and names == 3 for _, rel, names in targets)
    for link in page.locator("main .prose .dead-link").all():
        link.click()
    window.shoot("hostile")


def test_the_detector_can_fire(browser: "Browser", server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"policy violated|TrustedHTML"):
        be_hurt(browser, server.url, tmp_path)


def be_hurt(browser: "Browser", url: str, folder: Path) -> None:
    with open_window(browser, url, folder) as window:
        window.page.goto(url)
        with window.page.expect_console_message():
            window.page.evaluate(
                "() => { try { document.body.innerHTML = '<b>hurt</b>'; } catch { /* refused */ } }"
            )


def test_html_that_a_program_shows_becomes_a_plain_table(window: Window) -> None:
    page = window.page
    ask_and_wait(page, "shown")
    expect(page.locator(".table-exhibit td")).to_have_text("cell")
    assert page.locator(".table-exhibit th").inner_text() == "a"
    expect(page.locator(FOREIGN)).to_have_count(0)


def test_files_with_hostile_names_and_content_are_only_offered(window: Window) -> None:
    page = window.page
    ask_and_wait(page, "written")
    expect(page.locator(".chip")).to_have_count(3)
    expect(page.locator(".exhibit img")).to_have_count(0)


def test_a_flood_of_output_leaves_the_page_in_working_order(window: Window) -> None:
    page = window.page
    ask_and_wait(page, "flood")
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000
    assert len(page.locator(".observation").inner_text()) < 30_000
    page.get_by_role("button", name="Show the rest as plain text").click()
    expect(page.locator(".plain-rest")).to_have_count(1)
    ask_and_wait(page, "escapes")


def test_titles_are_text_wherever_they_stand(window: Window) -> None:
    page = window.page
    ask_and_wait(page, "<u>title</u><img src=x onerror=window.hurt=1>")
    expect(page.locator(".session a[aria-current]")).to_contain_text("<u>title</u>")
    expect(page.locator(".head-title")).to_contain_text("<u>title</u>")
    expect(page.locator("main :is(u, img)")).to_have_count(0)
