"""Syntax checks that run no code, for a few languages."""

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Callable
from pathlib import PurePosixPath

_LARGEST_CHARS = 4_000_000
_JSON_WITH_COMMENTS = re.compile(r"[tj]sconfig.*\.json|\.eslintrc\.json|devcontainer\.json")


def is_readable(path: PurePosixPath) -> bool:
    """Whether `syntax_error` knows the language of this file."""
    return _parser_for(path) is not None


def syntax_error(path: PurePosixPath, text: str) -> str:
    """Return `line 3: the error`; empty if the file parses or its language is not known."""
    parse = _parser_for(path)
    if parse is None or len(text) > _LARGEST_CHARS:
        return ""
    try:
        parse(text)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except json.JSONDecodeError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:  # tomllib names the line itself; NUL characters and huge numbers
        return str(error)
    except (RecursionError, MemoryError):
        return "it is nested too deeply to be read"
    return ""


def parse_python(text: str) -> ast.Module | None:
    """Return the syntax tree; None if the source does not parse."""
    try:
        return _parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parse_python(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # An invalid escape is only a warning, not an error.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _parser_for(path: PurePosixPath) -> Callable[[str], object] | None:
    match path.suffix.lower():
        case ".py" | ".pyi":
            return _parse_python
        case ".json" if not _JSON_WITH_COMMENTS.fullmatch(path.name):
            return json.loads
        case ".toml":
            return tomllib.loads
        case _:
            return None
