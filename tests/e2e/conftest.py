"""A browser for the tests of the web page, one for each module."""

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from tests.support.chromium import open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> "Generator[Browser]":
    with open_browser() as opened:
        yield opened
