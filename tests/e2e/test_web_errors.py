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
    from playwright.sync_api import Browser, Page


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


def enter(page: "Page", key: str) -> None:
    page.get_by_label("API key").fill(key)
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


def test_a_page_without_a_key_says_what_is_missing(window: Window, server: WebServer) -> None:
    page = window.page
    page.goto(f"{server.url}#/settings")
    page.get_by_role("button", name="Not now").click()
    expect(page.locator(".problem").first).to_be_visible()


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
    expect(page.locator(".problem")).to_contain_text("It can be tried again in")
    expect(page.locator(".problem button")).to_be_disabled()
    assert page.get_by_role("textbox", name="Message").input_value() == "hello"
    window.shoot("limit")


def test_a_conversation_that_is_not_there_is_said_to_be_missing(
    window: Window, server: WebServer
) -> None:
    page = window.page
    key = new_key(server, "lost")
    page.goto(f"{server.url}#/s/nobody-knows-0000")
    enter(page, key)
    expect(page.locator(".log .problem")).to_be_visible()
    expect(page.locator(".request-id").first).to_be_visible()
    page.goto(f"{server.url}#/r/nobody-knows-0000")
    expect(page.locator(".run .problem")).to_be_visible()


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
