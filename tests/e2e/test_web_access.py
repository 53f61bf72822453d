"""The web page for everybody: by keyboard, with a screen reader, on a phone, light and dark."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.audits import ENOUGH, contrasts_of_controls, contrasts_of_texts, violations
from tests.support.chromium import Window, ask, open_window
from tests.support.served import GOAL, WRONG
from tests.support.web_server import WebServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CODE = """I look **closely**.

```python
import matplotlib.pyplot as plt

def area(r):  # a comment
    return 3.14 * r ** 2

plt.plot([1, 2, 3])
print('a line of output that is rather long, ' * 6, area(2), None)
```"""
ANSWER = """## Heading

#### A heading two levels below

A [link](https://example.org), `code`, and a list:

- one
- two

> quoted

| a wide column | another wide column | yet another one | and one more |
|---|---|---|---|
| 1 | 2 | 3 | 4 |
"""
REPLIES = {
    "zebra": [CODE, ANSWER],
    "calc.py": ["1. Write calc.py.", f"```python calc.py\n{WRONG}```", "That is all."],
    "": ["Good day."],
}
ORDER = [
    "New conversation",
    "Runs",
    "Search conversations",
    "Settings",
    "Undo the last turn",
    "More",
    "Message",
    "Add files",
    "Send",
]
SIZES = {"wide": (1280, 860), "phone": (360, 740)}

NAMELESS = r"""() => {
  const named = (element) => {
    const own = element.getAttribute("aria-label") || element.title || element.alt;
    const by = document.getElementById(element.getAttribute("aria-labelledby"));
    const texts = [own, element.innerText, by?.innerText, element.labels?.[0]?.innerText];
    return texts.some((text) => text?.trim());
  };
  const wanted = `button, a[href], input, select, textarea, dialog, img, nav, aside,
    [role=img], [role=menu], [role=region], [role=group]`;
  const seen = (element) => element.checkVisibility({ visibilityProperty: true });
  const told = (element) => seen(element) && !element.closest("[aria-hidden=true]");
  return [...document.querySelectorAll(wanted)]
    .filter((element) => told(element) && !named(element))
    .map((element) => element.outerHTML.slice(0, 120));
}"""

FOCUS = r"""() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const ring = style.outlineStyle !== "none" || element.matches(".composer textarea");
  const box = element.getBoundingClientRect();
  const words = element.innerText || element.placeholder || element.tagName;
  return { name: element.getAttribute("aria-label") || words,
    ring, seen: box.width > 0 && box.height > 0, body: element === document.body };
}"""


@pytest.fixture(scope="module")
def session(browser: "Browser", server: WebServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A conversation with a little of everything, to be looked at."""
    with open_window(browser, server.url, tmp_path_factory.mktemp("shots")) as window:
        window.page.goto(server.url)
        ask(window.page, "Take a look at this zebra")
        window.page.locator(".answer table").wait_for()
        return window.page.url


@pytest.fixture(scope="module")
def run(server: WebServer) -> str:
    """A run that was not accepted, to be looked at."""
    asked = {**GOAL, "budget": {"attempts": 1}}
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        found = client.post("/v1/runs", json=asked).json()["id"]
        client.get(f"/v1/runs/{found}/events")
    return f"{server.url}#/r/{found}"


@pytest.fixture(scope="module")
def places(server: WebServer, session: str, run: str) -> dict[str, tuple[str, str]]:
    """Every view, and what shows that it is there."""
    return {
        "home": (server.url, ".home .idea"),
        "conversation": (session, ".exhibit img"),
        "runs": (f"{server.url}#/runs", ".run-list .row"),
        "run": (run, ".outcome"),
        "settings": (f"{server.url}#/settings", ".facts"),
        "no-conversation": (f"{server.url}#/s/unknown-0000", ".state-view"),
        "no-page": (f"{server.url}#/unknown", ".state-view"),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_every_view_can_be_read_and_fits(
    browser: "Browser",
    server: WebServer,
    places: dict[str, tuple[str, str]],
    tmp_path: Path,
    scheme: str,
    size: str,
) -> None:
    width, height = SIZES[size]
    look: dict[str, Any] = {
        "viewport": {"width": width, "height": height},
        "color_scheme": scheme,
        "has_touch": size == "phone",
        "reduced_motion": "reduce",
    }
    with open_window(browser, server.url, tmp_path, **look) as window:
        page = window.page
        for name, (address, sign) in places.items():
            page.goto(address)
            page.locator(sign).first.wait_for()
            contrasts = contrasts_of_texts(page)
            assert len(contrasts) > 2
            assert [each for each in contrasts if each[0] < ENOUGH] == [], name
            assert page.evaluate(NAMELESS) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            window.shoot(f"{name}-{scheme}-{size}")
        page.goto(places["conversation"][0])
        page.keyboard.press("Control+k")
        page.get_by_role("searchbox").wait_for()
        assert page.evaluate(NAMELESS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_control_can_be_read_at_rest_under_the_pointer_and_with_focus(
    browser: "Browser",
    server: WebServer,
    places: dict[str, tuple[str, str]],
    tmp_path: Path,
    scheme: str,
) -> None:
    with open_window(browser, server.url, tmp_path, color_scheme=scheme) as window:
        page = window.page
        measured: dict[str, dict[str, float]] = {}
        for address, sign in places.values():
            page.goto(address)
            page.locator(sign).first.wait_for()
            measured |= contrasts_of_controls(page)
        page.goto(places["run"][0])
        page.get_by_role("button", name="More").click()
        measured |= contrasts_of_controls(page)
        page.get_by_role("menuitem", name="Delete this run").click()
        measured |= contrasts_of_controls(page)
        window.shoot(f"delete-{scheme}")
    poor = {kind: seen for kind, seen in measured.items() if min(seen.values()) < ENOUGH}
    assert poor == {}
    variants = {"button primary", "button small", "icon-button", "menu-item danger", "send", "idea"}
    assert variants | {"dialog button", "dialog button danger"} <= set(measured)


def test_the_detectors_can_fire(browser: "Browser", server: WebServer, tmp_path: Path) -> None:
    with open_window(browser, server.url, tmp_path) as window:
        page = window.page
        page.goto(server.url)
        page.locator(".idea").first.wait_for()
        page.evaluate("document.querySelector('.home-lead').style.color = '#bbb'")
        page.evaluate("document.querySelector('.send').removeAttribute('title')")
        page.evaluate("document.querySelector('.send').removeAttribute('aria-label')")
        assert min(contrasts_of_texts(page))[0] < ENOUGH
        assert len(page.evaluate(NAMELESS)) == 1


def test_bars_are_seen_with_forced_colours(
    browser: "Browser", server: WebServer, run: str, tmp_path: Path
) -> None:
    with open_window(browser, server.url, tmp_path, forced_colors="active") as window:
        page = window.page
        page.goto(run)
        page.locator(".budget progress").first.wait_for()
        bar = page.locator(".budget progress").first.evaluate(
            """(bar) => {
              const style = getComputedStyle(bar);
              const sides = ["Top", "Right", "Bottom", "Left"];
              return { widths: sides.map((side) => style[`border${side}Width`]),
                colour: style.borderTopColor, ground: style.backgroundColor };
            }"""
        )
        assert set(bar["widths"]) == {"1px"}
        assert bar["colour"] != bar["ground"]
        window.shoot("run-forced-colors")


def test_the_detectors_of_axe_can_fire(window: Window) -> None:
    page = window.page
    page.locator(".idea").first.wait_for()
    page.evaluate(
        """() => {
          const made = document.createElement("button");
          made.append("Fetch it");
          made.setAttribute("aria-label", "Something else");
          document.querySelector(".ideas").append(made, document.createElement("h6"));
          document.querySelector(".ideas h6").append("Deep");
        }"""
    )
    rules = {found.split(":")[0] for found in violations(page)}
    assert rules == {"label-content-name-mismatch", "heading-order"}


def test_the_focus_goes_through_the_page_in_order_and_is_seen(window: Window, session: str) -> None:
    page = window.page
    page.goto(session)
    page.locator(".exhibit img").wait_for()
    page.get_by_role("link", name="Skip to the content").focus()
    assert [name for name in tab_through(page) if name in ORDER] == ORDER


def test_the_focus_stays_where_it_is_when_the_list_is_drawn_anew(
    window: Window, session: str
) -> None:
    page = window.page
    page.goto(session)
    link = page.locator(".session a[aria-current]")
    link.focus()
    page.evaluate("document.activeElement.dataset.before = 'yes'")
    page.evaluate("document.dispatchEvent(new CustomEvent('assay:sessions'))")
    expect(page.locator("[data-before]")).to_have_count(0)
    expect(link).to_be_focused()


def tab_through(page: "Page") -> list[str]:
    """Press Tab until the page is through, and return the names of what had the focus."""
    seen: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        if focus["body"]:
            break
        assert focus["ring"], focus
        assert focus["seen"], focus
        seen.append(re.sub(r"\s+", " ", focus["name"]).strip())
    return seen


def test_keys_do_what_the_list_of_keys_says(window: Window, session: str) -> None:
    page = window.page
    page.goto(session)
    page.locator(".exhibit img").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    page.locator(".home").wait_for()
    page.keyboard.type("hello by keyboard")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_contain_text("Good day")
    page.get_by_role("button", name="More").press("Enter")
    page.keyboard.press("ArrowDown")
    assert "Export as notebook" in page.evaluate(FOCUS)["name"]
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUS)["name"] == "More"
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("r")
    page.locator(".run-form").wait_for()


def test_colours_are_remembered(browser: "Browser", server: WebServer, tmp_path: Path) -> None:
    with open_window(browser, server.url, tmp_path) as window:
        page = window.page
        page.goto(f"{server.url}#/settings")
        page.get_by_role("radio", name="Dark").check()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.reload()
        expect(page.get_by_role("radio", name="Dark")).to_be_checked()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
        page.get_by_role("radio", name="Light").check()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_the_list_opens_and_closes_on_a_phone(
    browser: "Browser", server: WebServer, tmp_path: Path
) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with open_window(browser, server.url, tmp_path, **phone) as window:
        page = window.page
        page.goto(server.url)
        expect(page.get_by_role("searchbox")).not_to_be_visible()
        page.get_by_role("button", name="Show conversations and runs").click()
        expect(page.get_by_role("searchbox")).to_be_focused()
        window.shoot("side-phone")
        page.keyboard.press("Escape")
        expect(page.get_by_role("searchbox")).not_to_be_visible()
