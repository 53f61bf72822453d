"""Folders of users: sessions, runs and memory, apart from other users'."""

import re
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.settings.load import Settings
from assay.wiring import settings_apart

_USER: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
USERS: Final = "users"


def check_user(name: str) -> str:
    """Return the name if it is a valid user name.

    Raises:
        UsageError: If it is not.
    """
    if not _USER.fullmatch(name):
        raise UsageError(
            f"not a name for a user: {name!r}",
            hint="use up to 64 small letters, digits, - and _, a letter or digit first",
        )
    return name


def folder_of(state_dir: Path, user: str) -> Path:
    """Return the folder of a user."""
    return state_dir / USERS / check_user(user)


def settings_of(settings: Settings, user: str) -> Settings:
    """Return the settings for all work of this user."""
    return settings_apart(settings, folder_of(settings.state_dir, user))
