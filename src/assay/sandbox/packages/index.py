"""Package index: passes the index that pip is configured for on to uv.

uv reads neither pip's variables nor its files, and users who need another index have configured it
there. Settings for uv itself win. All settings are passed in the environment, because a URL may
contain a password, and arguments are visible to all users of the machine.
"""

import configparser
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FOR_UV: Final = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|INSECURE_HOST|OFFLINE"
    r"|HTTP_TIMEOUT|NATIVE_TLS|SYSTEM_CERTS|INDEX_\w+_(USERNAME|PASSWORD))"
    r"|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|HOME|LANG|LC_ALL|NETRC",
    re.IGNORECASE,
)
_SECTIONS: Final = ("global", "install")
_PIP: Final = {
    "index-url": ("UV_DEFAULT_INDEX", " ", ("UV_INDEX_URL",)),
    "extra-index-url": ("UV_INDEX", " ", ("UV_EXTRA_INDEX_URL",)),
    "find-links": ("UV_FIND_LINKS", ",", ()),
    "trusted-host": ("UV_INSECURE_HOST", " ", ()),
    "no-index": ("UV_NO_INDEX", " ", ()),
    "cert": ("SSL_CERT_FILE", " ", ()),
}
"""By pip's name: uv's variable, the separator of several values, older names of the same."""
_CREDENTIALS: Final = re.compile(r"://[^/@\s]+@")


def index_environment(user: Mapping[str, str]) -> dict[str, str]:
    """Return uv's environment variables from the user's environment and pip's settings."""
    told = {name: value for name, value in user.items() if _FOR_UV.fullmatch(name)}
    for option, value in _pip_options(user).items():
        variable, separator, others = _PIP[option]
        if value and not any(name in told for name in (variable, *others)):
            told[variable] = separator.join(value.split())
            if option == "extra-index-url":
                # Users who configured several indexes for pip expect the best version of all, as
                # from pip.
                told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return told


def redacted(text: str) -> str:
    """Remove user names and passwords from URLs."""
    return _CREDENTIALS.sub("://", text)


def _pip_options(user: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for path in _pip_files(user):
        options |= _read(path)
    for option in _PIP:
        value = user.get(f"PIP_{option.upper().replace('-', '_')}")
        if value is not None:
            options[option] = value
    return options


def _pip_files(user: Mapping[str, str]) -> list[Path]:
    """Return the files that pip reads, in ascending priority."""
    home = Path(user.get("HOME", "/nonexistent"))
    folders = (user.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    personal = Path(user.get("XDG_CONFIG_HOME") or home / ".config")
    named = user.get("PIP_CONFIG_FILE", "")
    if named == "/dev/null":
        return []
    return [
        *(Path(folder, "pip", "pip.conf") for folder in folders if folder),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        personal / "pip" / "pip.conf",
        Path(sys.prefix, "pip.conf"),
        *([Path(named)] if named else []),
    ]


def _read(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}  # pip itself reports this error to its users
    return {
        option: parser.get(section, option)
        for section in _SECTIONS
        for option in _PIP
        if parser.has_option(section, option)
    }
