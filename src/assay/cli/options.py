"""The options that several commands share, and their JSON output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from assay.contracts.jsonable import jsonable

FOLDER: Final = click.Path(file_okay=False, path_type=Path)
FILE: Final = click.Path(dir_okay=False, path_type=Path)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option_group(*options: Decorator) -> Decorator:
    """Return one decorator that adds these options, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def json_option(what: str) -> Decorator:
    """Return the option `--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=what)


JSON_OBJECT: Final = json_option("Print one JSON object.")
JSON_ARRAY: Final = json_option("Print one JSON array.")
YES: Final = click.option("--yes", is_flag=True, help="Do not ask; required without a terminal.")
BACKEND: Final = click.option("--backend", help="Sandbox backend.  [default: sandbox.backend]")
MODEL: Final = click.option("--model", help="Model to use: `auto`, `local`, PROVIDER[:MODEL] …")

ENV: Final = click.option(
    "--env",
    default="auto",
    show_default=True,
    metavar="auto|off|PATH",
    help="Packages of the project: install what it declares, nothing, or mount this .venv.",
)


def to_json(value: object) -> str:
    """Return a value as one line of JSON; a dataclass becomes an object of its fields."""
    return json.dumps(jsonable(value))
