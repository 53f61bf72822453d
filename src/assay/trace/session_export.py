"""A conversation as a Jupyter notebook, and as Markdown. Pure: the files are given."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from assay.contracts.dialogue import CellEnded, Exhibit
from assay.contracts.dialogue_history import History, Turn

Load = Callable[[Exhibit], bytes]
"""Returns the content of what came out of a conversation."""

_SHOWN: Final = ("image/png", "image/jpeg", "image/gif")


def to_notebook(history: History, load: Load) -> str:
    """Return the text of an `.ipynb` file: questions and answers as text, cells as cells."""
    cells: list[dict[str, Any]] = []
    if history.files:
        names = "\n".join(f"- `{file.path}`" for file in history.files)
        cells.append(_words(f"Files that this needs beside it:\n{names}"))
    for turn in history.turns:
        cells.append(_words(_quoted(turn.message)))
        thoughts = iter(turn.thoughts)
        for cell in turn.cells:
            if thought := next(thoughts, ""):
                cells.append(_words(thought))
            cells.append(_code(cell, load))
        if turn.answer:
            cells.append(_words(turn.answer))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells, 1)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def to_markdown(history: History, *, artifacts: Path | None = None) -> str:
    """Return the conversation as Markdown; pictures are linked where they lie."""
    parts: list[str] = []
    for turn in history.turns:
        parts.append(f"## {' '.join(turn.message.split())}")
        parts.extend(_steps(turn, artifacts))
        if turn.answer:
            parts.append(turn.answer)
    return "\n\n".join(parts) + "\n"


def _steps(turn: Turn, artifacts: Path | None) -> list[str]:
    parts: list[str] = []
    thoughts = iter(turn.thoughts)
    for step in turn.steps:
        if not isinstance(step, CellEnded):
            parts.append(f"*Used `{step.tool}`:*\n\n{_fenced('text', step.answer)}")
            continue
        if thought := next(thoughts, ""):
            parts.append(thought)
        parts.append(_fenced("python", step.code))
        parts.append(_fenced("text", step.observation))
        if artifacts is not None:
            parts.extend(
                f"![{artifact.name}]({artifacts / artifact.name})"
                for artifact in step.artifacts
                if artifact.media_type in _SHOWN
            )
    return parts


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _fenced(language: str, text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _words(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(cell: CellEnded, load: Load) -> dict[str, Any]:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": "stdout", "text": f"{cell.observation.rstrip()}\n"}
    ]
    for artifact in cell.artifacts:
        if artifact.media_type in _SHOWN and artifact.source == "figure":
            data = {artifact.media_type: base64.b64encode(load(artifact)).decode()}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": outputs,
        "source": cell.code,
    }
