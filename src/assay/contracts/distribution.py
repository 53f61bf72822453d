"""The distribution name of Assay, its extras, and commands that install them."""

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "assay-agent"
"""Differs from the module and command `assay`: that name belongs to another project on PyPI."""
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("cryptography", "langgraph", "pytest"),
    "anthropic": ("anthropic",),
    "bench": ("yaml",),
    "chat": ("jsonschema", "prompt_toolkit", "yaml"),
    "docker": ("docker", "google.protobuf"),
    "e2b": ("e2b",),
    "executor": ("cryptography", "grpc", "prometheus_client"),
    "gemini": ("google.genai",),
    "local": ("xllamacpp",),
    "mcp": ("mcp",),
    "openai": ("openai",),
    "packages": ("packaging", "uv"),
    "postgres": ("psycopg",),
    "serve": ("fastapi", "limits", "uvicorn"),
}
"""Modules that show whether an extra is installed."""


def install_command(extras: str) -> str:
    """Return the shell command that installs extras, separated by commas."""
    return f"pip install '{DISTRIBUTION}[{extras}]'"


def how_to_install(extras: str, *, code: Path = Path(__file__)) -> str:
    """Return a hint that installs missing extras; `code` is a file of this installation."""
    if os.access(code.parent, os.W_OK):
        return f"run `{install_command(extras)}`"
    # The shipped images cannot install anything; their users need another image.
    return (
        "this installation cannot be changed from here; "
        f"use an image or an environment that has '{DISTRIBUTION}[{extras}]'"
    )


def missing_extras(extras: Iterable[str]) -> tuple[str, ...]:
    """Return the extras of these that are not installed, each one once."""
    return tuple(extra for extra in dict.fromkeys(extras) if not _is_installed(extra))


def _is_installed(extra: str) -> bool:
    try:
        return all(find_spec(module) for module in _MODULES[extra])
    except ModuleNotFoundError:
        # The parent package of the module is missing.
        return False
