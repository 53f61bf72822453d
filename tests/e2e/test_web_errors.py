"""What the web page makes of refusals: of keys, limits, missing things, models that fail."""

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support.chromium import Window, ask, open_window
from tests.support.keyed_chat import serve_keyed
from tests.support.web_server import WebServer, serve_web

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[WebServer]:
    home = tmp_path_factory.mktemp("home")
    with (
        serve_keyed({"": ["Good day."]}) as chat,
        serve_web(home, "--require-keys", base_url=chat.base_url) as started,
    ):
        yield started


@pytest.fixture
def window(browser: "Browser", server: WebServer, tmp_path: Path) -> Generator[Window]:
    with open_window(browser, server.url, tmp_path) as opened:
        yield opened


def new_key(server: WebServer, name: str, *words: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "assay", "keys", "create", name, "--json", *words],
        env=server.environment,
        cwd=server.home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["key"])


def enter(page: "Page | Locator", key: str) -> None:
    page.get_by_label("API key", exact=True).fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_a_key_is_asked_for_once_and_kept_for_the_tab_alone(
    window: Window, server: WebServer
) -> None:
    page = window.page
    key = new_key(server, "web")
    page.goto(server.url)
    expect(page.get_by_role("dialog")).to_have_count(1)
    window.shoot("key")
    enter(page, "assay_wrong")
    expect(page.locator(".complaint")).to_be_visible()
    enter(page, key)
    expect(page.get_by_role("dialog")).to_have_count(0)
    ask(page, "hello")
    expect(page.locator(".answer")).to_contain_text("Good day")
    page.reload()
    expect(page.locator(".answer")).to_contain_text("Good day")
    assert page.evaluate("JSON.stringify(localStorage)").find(key) == -1
    assert key not in page.url


def test_whoever_gives_no_key_is_signed_out_and_can_sign_in(
    window: Window, server: WebServer
) -> None:
    page = window.page
    key = new_key(server, "later")
    page.goto(server.url)
    page.get_by_role("dialog").wait_for()
    page.get_by_role("button", name="Not now").click()
    expect(page.get_by_role("heading", name="Signed out")).to_be_visible()
    expect(page.locator(".sessions")).to_contain_text("Signed out")
    expect(page.locator(".composer")).to_have_count(0)
    window.shoot("signed-out")
    for place in ("#/runs", "#/settings", "#/"):
        page.evaluate("place => { location.hash = place; }", place)
        expect(page.get_by_role("heading", name="Signed out")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    enter(page, "assay_wrong")
    expect(page.locator(".key-form .complaint")).to_be_visible()
    page.get_by_role("button", name="Enter API key").click()
    dialog = page.get_by_role("dialog", name="API key required")
    enter(dialog, "assay_wrong")
    expect(dialog.locator(".complaint")).to_be_visible()
    enter(dialog, key)
    page.locator(".home").wait_for()
    expect(page.get_by_role("button", name="Enter API key")).to_have_count(0)
    ask(page, "hello")
    expect(page.locator(".answer")).to_contain_text("Good day")
    page.goto(f"{server.url}#/settings")
    page.get_by_role("button", name="Forget the key").click()
    expect(page.get_by_role("heading", name="Signed out")).to_be_visible()
    enter(page, key)
    expect(page.locator(".facts")).to_be_visible()


def test_a_draft_is_there_again_after_signing_in(window: Window, server: WebServer) -> None:
    page = window.page
    key = new_key(server, "draft")
    page.goto(server.url)
    page.get_by_role("dialog").wait_for()
    page.locator(".composer textarea").evaluate("field => { field.value = 'a draft'; }")
    page.get_by_role("button", name="Not now").click()
    enter(page, key)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("a draft")


def test_the_key_field_is_there_on_a_phone(
    browser: "Browser", server: WebServer, tmp_path: Path
) -> None:
    phone = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}
    with open_window(browser, server.url, tmp_path, color_scheme="dark", **phone) as window:
        window.page.goto(server.url)
        window.page.get_by_role("button", name="Not now").click()
        expect(window.page.get_by_label("API key", exact=True)).to_be_in_viewport()
        window.shoot("signed-out-phone")


def test_a_limit_says_when_to_try_again(window: Window, server: WebServer) -> None:
    page = window.page
    key = new_key(server, "busy", "--requests-per-minute", "8")
    page.goto(server.url)
    enter(page, key)
    expect(page.get_by_role("dialog")).to_have_count(0)
    spend = """async (key) => {
      const headers = { Authorization: `Bearer ${key}` };
      for (let n = 0; n < 8; n += 1) await fetch("v1/me", { headers });
    }"""
    page.evaluate(spend, key)
    ask(page, "hello")
    expect(page.locator(".problem")).to_contain_text("Try again in")
    expect(page.locator(".problem button")).to_be_disabled()
    assert page.get_by_role("textbox", name="Message").input_value() == "hello"
    window.shoot("limit")


def test_what_is_not_there_is_said_to_be_missing(window: Window, server: WebServer) -> None:
    page = window.page
    page.goto(f"{server.url}#/s/unknown-0000")
    enter(page, new_key(server, "lost"))
    for name in ("unknown-0000", "not.a.name"):
        page.goto(f"{server.url}#/s/{name}")
        expect(page.get_by_role("heading", name="Conversation not found")).to_be_visible()
        expect(page.locator(".composer")).to_have_count(0)
        page.goto(f"{server.url}#/r/{name}")
        expect(page.get_by_role("heading", name="Run not found")).to_be_visible()
        expect(page.get_by_role("link", name="Show all runs")).to_be_visible()
    page.goto(f"{server.url}#/s/unknown-0000")
    page.get_by_role("button", name="Show all conversations").click()
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.goto(f"{server.url}#/nowhere")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    expect(page.locator(".side-link[aria-current]")).to_have_count(0)
    page.get_by_role("link", name="Go to the start page").click()
    page.locator(".home").wait_for()


@pytest.mark.slow
def test_a_model_that_cannot_be_reached_is_told_where_it_was_asked(
    browser: "Browser", tmp_path: Path
) -> None:
    with (
        serve_web(tmp_path, base_url="http://127.0.0.1:9/v1") as server,
        open_window(browser, server.url, tmp_path) as window,
    ):
        window.page.goto(server.url)
        ask(window.page, "hello")
        expect(window.page.locator(".ending.failed")).to_be_visible()
        window.shoot("no-model")
