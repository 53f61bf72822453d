"""Everything configurable, as frozen values. The only module that reads the environment.

A value comes from the command line, else from an `ASSAY_…` variable (`ASSAY_SANDBOX__POOL_SIZE`),
else from the settings file, else it is the default given here.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.contracts.errors import UsageError
from assay.contracts.execution import Isolation

_PREFIX = "ASSAY_"
_NESTING = "__"
_NOT_SETTINGS = frozenset({"ASSAY_CONFIG", "ASSAY_RUNTIME_DIR", "ASSAY_TEST_REQUIRE"})

Positive = Annotated[int, Field(gt=0)]


def _runtime_dir() -> Path:
    if named := os.environ.get("ASSAY_RUNTIME_DIR"):
        return Path(named)
    if user := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(user) / "assay"
    return Path("/tmp") / f"assay-{os.getuid()}"  # noqa: S108 - owner and mode are checked on use


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SandboxSettings(_Strict):
    """How code is isolated."""

    backend: Literal["auto", "native"] = "auto"
    isolation: Isolation | None = None
    """The least that is acceptable; less than this is an error. Unset: the best there is."""
    namespaces: bool = True
    """Whether the native backend may use namespaces; without them it has Landlock alone."""
    preload: tuple[tuple[str, ...], ...] = (
        ("numpy", "pandas"),
        ("matplotlib.pyplot", "sklearn"),
    )
    """Modules that programs find already imported, in stages of growing weight."""
    pool_size: Annotated[int, Field(ge=0, le=64)] = 3
    """How many processes wait ready for a program, per stage."""
    max_concurrent: Positive = 32
    """Executions at once; more wait their turn."""
    read_only: tuple[Path, ...] = ()
    """More of this machine that programs may read, at the same path."""
    runtime_dir: Path = Field(default_factory=_runtime_dir)
    """Where running engines are written down, so that a crash can be cleaned up."""
    search_path: tuple[str, ...] = Field(default_factory=lambda: tuple(os.get_exec_path()))
    """Where to look for toolchains to offer."""


class Settings(_Strict):
    """The whole of it."""

    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)


def load_settings(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Merge defaults, file, environment and the caller's words, the later winning.

    Raises:
        UsageError: If the file cannot be read, or a name or value is not one we know.
    """
    merged: dict[str, Any] = {}
    for layer in (_from_file(), _from_environment(), overrides or {}):
        _merge(merged, layer)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise _explained(error) from error


def _explained(error: ValidationError) -> UsageError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return UsageError(f"there is no setting {name!r}", hint="see docs/reference/settings.md")
    return UsageError(f"setting {name}: {first['msg'].lower()}, not {first['input']!r}")


def _config_file() -> Path:
    if named := os.environ.get("ASSAY_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "assay" / "config.toml"


def _from_file() -> dict[str, Any]:
    path = _config_file()
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        if "ASSAY_CONFIG" in os.environ:
            raise UsageError(
                f"ASSAY_CONFIG names {str(path)!r}, which does not exist",
                hint="create the file or unset ASSAY_CONFIG",
            ) from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the settings file {str(path)!r}: {error}") from error


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in os.environ.items():
        if not name.startswith(_PREFIX) or _NESTING not in name or name in _NOT_SETTINGS:
            continue
        *sections, key = name.removeprefix(_PREFIX).lower().split(_NESTING)
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return found


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)  # pyright: ignore[reportUnknownArgumentType] - a table
        elif value is not None:
            into[name] = value
