"""A real browser, and an eye on everything that must not happen in it."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.audits import violations
from tests.support.requirements import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

PROGRAM = Path("/usr/bin/chromium")
SCREENSHOTS = "ASSAY_TEST_SCREENSHOTS"
PATIENCE_MS = 60_000
_SWITCHES = (
    "--no-sandbox",  # tests run as root, and open nothing but our own page
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""
_TOLERATED = "Failed to load resource"
"""Said of every answer that is an error: what the page makes of it is for the tests to see."""


@dataclass(kw_only=True)
class Window:
    """A page, and what happened in it that should not have."""

    page: "Page"
    origin: str
    complaints: list[str] = field(default_factory=list[str])
    folder: Path

    def shoot(self, name: str) -> None:
        """Keep a picture of what is seen, and look for what assistive technology could not use."""
        self.page.screenshot(path=self.folder / f"{name}.png")
        assert violations(self.page) == [], name

    def note_console(self, message: "ConsoleMessage") -> None:
        """Remember what only a bug or an attack would print."""
        if message.type in {"error", "warning"} and _TOLERATED not in message.text:
            self.complaints.append(f"console: {message.text}")

    def note_request(self, request: "Request") -> None:
        """Remember what leaves the origin."""
        if not request.url.startswith((self.origin, "blob:", "data:")):
            self.complaints.append(f"request to {request.url}")


def ask(page: "Page", message: str) -> None:
    """Send a message of a conversation."""
    page.get_by_role("textbox", name="Message").fill(message)
    page.get_by_role("textbox", name="Message").press("Control+Enter")


@contextmanager
def open_browser() -> "Generator[Browser]":
    """Start Chromium, if it is here."""
    require("chromium", available=PROGRAM.exists(), why=f"{PROGRAM} is missing")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=list(_SWITCHES))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_window(browser: "Browser", origin: str, folder: Path, **look: Any) -> Generator[Window]:
    """Open a page of a fresh profile; at the end, nothing may have happened that should not."""
    size: Any = look.pop("viewport", {"width": 1280, "height": 860})
    context: BrowserContext = browser.new_context(viewport=size, **look)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_WATCH_POLICY)
    page = context.new_page()
    window = Window(page=page, origin=origin, folder=screenshot_folder(folder))
    page.on("console", window.note_console)
    page.on("pageerror", lambda error: window.complaints.append(f"error: {error}"))
    context.on("request", window.note_request)
    try:
        yield window
    finally:
        context.close()
    assert not window.complaints, "\n".join(window.complaints)


def screenshot_folder(otherwise: Path) -> Path:
    """Where pictures go: the gate keeps them."""
    folder = Path(os.environ.get(SCREENSHOTS) or otherwise)  # noqa: TID251 - a switch of the test run
    folder.mkdir(parents=True, exist_ok=True)
    return folder
