"""A server that goes away and comes back: the web page goes on without a reload."""

import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support.chromium import Window, ask
from tests.support.keyed_chat import HOLD, KeyedChat, serve_keyed
from tests.support.web_server import WebServer, serve_web

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.slow

REPLIES = {
    "remember": ["```python\nkept = 41\n```", "Kept."],
    "recall": ["```python\nprint('recalled', kept + 1)\n```", "There it is."],
    "slow": ["The beginning. " + HOLD + "The end."],
    "greeting": ["Good day."],
}


@pytest.fixture
def chat() -> Generator[KeyedChat]:
    with serve_keyed(REPLIES) as served:
        yield served


@pytest.fixture
def server(chat: KeyedChat, tmp_path: Path) -> Generator[WebServer]:
    with serve_web(tmp_path, base_url=chat.base_url) as started:
        yield started


def test_a_conversation_goes_on_after_the_server_was_restarted(
    window: Window, server: WebServer
) -> None:
    page = window.page
    ask(page, "remember")
    expect(page.locator(".answer")).to_have_text("Answer: Kept.")
    page.evaluate("window.sameAsBefore = true")
    server.end()
    expect(page.locator("#connection")).to_contain_text("Connection lost, retrying")
    window.shoot("connection-lost")
    ask(page, "recall")
    expect(page.locator(".problem")).to_contain_text("The server does not answer")
    assert page.get_by_role("textbox", name="Message").input_value() == "recall"
    server.start()
    expect(page.locator("#connection")).to_be_hidden()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".observation").last).to_contain_text("recalled 42")
    expect(page.locator(".answer")).to_have_count(2)
    assert page.evaluate("window.sameAsBefore")


def test_a_turn_that_was_cut_off_by_a_crash_is_told_as_such(
    window: Window, server: WebServer
) -> None:
    page = window.page
    ask(page, "slow")
    page.locator(".live .prose").filter(has_text="The beginning.").wait_for()
    server.end(signal.SIGKILL)
    expect(page.locator("#connection")).to_be_visible()
    server.start()
    page.locator(".ending.interrupted").wait_for()
    expect(page.locator("#connection")).to_be_hidden()
    ask(page, "greeting")
    expect(page.locator(".answer").last).to_contain_text("Good day")
