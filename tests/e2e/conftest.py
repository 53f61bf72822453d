"""What tests of the whole share; those of the web page a browser, a server and a window.

A module says in `REPLIES` what its model answers.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.chromium import Window, open_browser, open_window
from tests.support.keyed_chat import KeyedChat, serve_keyed
from tests.support.web_server import WebServer, serve_web

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module", autouse=True)
def _no_libraries_ahead() -> Generator[None]:
    """Start commands that load no libraries ahead: hundreds of them would do so in vain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_SANDBOX__PRELOAD", "")
        yield


@pytest.fixture(scope="module")
def browser() -> "Generator[Browser]":
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def chat(request: pytest.FixtureRequest) -> Generator[KeyedChat]:
    with serve_keyed(request.module.REPLIES) as served:
        yield served


@pytest.fixture(scope="module")
def server(chat: KeyedChat, tmp_path_factory: pytest.TempPathFactory) -> Generator[WebServer]:
    with serve_web(tmp_path_factory.mktemp("home"), base_url=chat.base_url) as started:
        yield started


@pytest.fixture
def window(browser: "Browser", server: WebServer, tmp_path: Path) -> Generator[Window]:
    with open_window(browser, server.url, tmp_path) as opened:
        opened.page.goto(server.url)
        yield opened
