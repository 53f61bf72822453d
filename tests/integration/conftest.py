"""What tests on the real machine share."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.leftovers import remove_engines
from tests.support.ordinary_user import OrdinaryUser, an_ordinary_user


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Generator[Path]:
    """Where the engines of one test are written down; what it leaves is removed all the same."""
    folder = tmp_path / "runtime"
    yield folder
    remove_engines(folder)


@pytest.fixture(scope="session")
def user() -> Generator[OrdinaryUser]:
    with an_ordinary_user() as user:
        yield user
