"""Where packages come from: the index that pip is set up to use here, in words for uv.

uv reads neither pip's variables nor its files, and people who need another index have written
it there. What they say for uv itself wins. All of it is handed on in the environment, since an
address may hold a password and arguments can be seen by everybody on the machine.
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
"""By pip's name: uv's variable, what stands between several values, older names of the same."""
_CREDENTIALS: Final = re.compile(r"://[^/@\s]+@")


def index_environment(user: Mapping[str, str]) -> dict[str, str]:
    """Return what uv is told of the user's environment, and of pip's settings."""
    told = {name: value for name, value in user.items() if _FOR_UV.fullmatch(name)}
    for option, value in _pip_options(user).items():
        variable, separator, others = _PIP[option]
        if value and not any(name in told for name in (variable, *others)):
            told[variable] = separator.join(value.split())
            if option == "extra-index-url":
                # Whoever has written it for pip expects the best of all of them, as from pip.
                told["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return told


def redacted(text: str) -> str:
    """Take names and passwords out of addresses."""
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
    """The files that pip reads, those that win last."""
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
        return {}  # pip says what is wrong with it, to whoever uses pip
    return {
        option: parser.get(section, option)
        for section in _SECTIONS
        for option in _PIP
        if parser.has_option(section, option)
    }
