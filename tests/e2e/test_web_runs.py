"""A run on the web page, from its goal to its certificate, with the real server."""

import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support.chromium import Window
from tests.support.keyed_chat import HOLD, KeyedChat
from tests.support.web_server import WebServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

TESTS = """\
from calc import add, double


def test_add():
    assert add(1, 2) == 3


def test_add_nothing():
    assert add(0, 0) == 0


def test_double():
    assert double(4) == 8
"""
HALF = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return a\n"
RIGHT = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n"


def whole(source: str, said: str = "") -> str:
    return f"{said}\n\n```python calc.py\n{source}```\n"


PROOF_MS = 90_000
"""Tests are run many times for a proof, which takes a while where others are at work too."""
PLAN = "1. Read test_calc.py.\n2. Write calc.py."
ALL = "That is all."
REPLIES = {
    "calculator": [
        PLAN,
        whole(HALF, "I write both functions."),
        ALL,
        ALL,  # told to go on, it insists: the tests decide
        whole(RIGHT, "I mend `double`."),
        ALL,
    ],
    "patience": [PLAN, "I think about it. " + HOLD + whole(RIGHT), whole(RIGHT), ALL],
    "hopeless": [PLAN, whole(HALF), ALL],
}


@pytest.fixture
def window(window: Window, server: WebServer) -> Window:
    window.page.goto(f"{server.url}#/runs")
    return window


def begin(page: "Page", goal: str, attempts: str = "") -> None:
    page.get_by_label("Goal").fill(goal)
    page.get_by_label("Check command").fill("pytest -q test_calc.py")
    page.locator(".drop-hint input").first.set_input_files(
        {"name": "test_calc.py", "mimeType": "text/x-python", "buffer": TESTS.encode()}
    )
    page.get_by_label("Attempts").fill(attempts)
    page.get_by_role("button", name="Start the run").click()


def test_a_run_from_its_goal_to_its_certificate(window: Window, server: WebServer) -> None:
    page = window.page
    begin(page, "Write calc.py, a calculator, so that the tests pass.")
    page.locator(".outcome.good").wait_for(timeout=PROOF_MS)
    expect(page.locator(".outcome h2")).to_have_text("Proven")
    expect(page.locator(".head-status .status")).to_have_text("Proven")
    expect(page.locator(".test_matrix .l-cell.gain").first).to_be_visible()
    expect(page.locator(".test_matrix-words")).to_contain_text("3 of 3 passed in the last")
    assert page.locator(".test_matrix .l-passed").count() >= 5
    assert page.locator(".test_matrix .l-failed").count() >= 1
    expect(page.locator(".plan li")).to_have_text(["Read test_calc.py.", "Write calc.py."])
    expect(page.locator(".attempt")).to_have_count(3)  # the planning is the first
    assert "calc.py" in page.locator(".run-main .diff-file summary").last.inner_text()
    expect(page.locator(".diff-line.added").filter(has_text="return 2 * a").last).to_be_visible()
    expect(page.locator(".budget-row").first).to_contain_text("Attempts")
    window.shoot("run")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Certificate").click()
    certificate = Path(downloading.value.path()).read_bytes()
    assert json.loads(certificate)["grade"] == "proven"
    checked = post(f"{server.url}v1/certificates/check", certificate)
    assert checked["signature"] == "valid"
    page.locator(".attempt summary").last.click()
    page.locator(".events-box summary").click()
    expect(page.locator(".events li code").filter(has_text="run_ended")).to_have_count(1)
    page.get_by_role("link", name="Runs").click()
    expect(page.locator(".row .status").first).to_have_text("Proven")


def post(url: str, body: bytes) -> dict[str, str]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return json.load(response)


@pytest.mark.slow
def test_a_run_is_watched_stopped_and_resumed(window: Window, chat: KeyedChat) -> None:
    page = window.page
    chat.go_on.clear()
    begin(page, "Write calc.py with patience.")
    expect(page.locator(".status.live")).to_have_text("Running")
    expect(page.locator(".attempt-body .live").last).to_contain_text("I think about it.")
    window.shoot("run-live")
    page.get_by_role("button", name="Stop").click()
    page.locator(".outcome").wait_for()
    chat.go_on.set()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".outcome h2")).to_have_text("Proven", timeout=PROOF_MS)


def test_a_run_that_is_not_accepted_says_so_and_has_no_certificate(window: Window) -> None:
    page = window.page
    begin(page, "This is hopeless.", attempts="1")
    page.locator(".outcome.bad").wait_for(timeout=PROOF_MS)
    assert page.get_by_role("button", name="Certificate").count() == 0
    expect(page.locator(".test_matrix .l-failed").first).to_be_visible()
    ended = page.locator(".outcome h2").inner_text()
    expect(page.locator(".head-status .status")).to_have_text(ended)
    page.get_by_role("link", name="Runs").click()
    expect(page.locator(".row .status").first).to_have_text(ended)
    page.go_back()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete this run").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator(".run-form").wait_for()


def test_a_run_without_a_goal_is_not_sent(window: Window) -> None:
    page = window.page
    page.get_by_role("button", name="Start the run").click()
    assert page.get_by_label("Goal").evaluate("field => field.validity.valueMissing")
    assert page.url.endswith("#/runs")
