"""Export of a session as a Jupyter notebook or Markdown. Pure functions on given files."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from assay.contracts.chat import READY_NAMES, CellEnded, History, StoredArtifact, Turn

Load = Callable[[StoredArtifact], bytes]
"""Returns the content of an artifact of a session."""

_SHOWN: Final = ("image/png", "image/jpeg", "image/gif")
_TABLE: Final = "text/html"
_MENTIONS: Final = frozenset({"[figure shown]", "[table shown]"})
"""Lines of an observation that stand for output that a notebook contains itself."""


def is_picture(artifact: StoredArtifact) -> bool:
    """Return whether a notebook or Markdown shows it as a picture."""
    return artifact.media_type in _SHOWN


def to_notebook(history: History, load: Load) -> str:
    """Return the text of an `.ipynb` file: messages as text, cells as cells."""
    cells: list[dict[str, Any]] = []
    if history.files:
        names = "\n".join(f"- `{file.path}`" for file in history.files)
        cells.append(_words(f"Files that this needs beside it:\n{names}"))
    if imports := _imports(history):
        cells.append(_code(imports, []))
    for turn in history.turns:
        cells.append(_words(_quoted(turn.message)))
        thoughts, remarks = iter(turn.thoughts), iter(turn.remarks)
        for cell in turn.cells:
            if thought := next(thoughts, ""):
                cells.append(_words(thought))
            cells.append(_cell(cell, load))
            if remark := next(remarks, ""):
                cells.append(_words(remark))
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


def to_markdown(history: History, *, artifacts: PurePosixPath | None = None) -> str:
    """Return the session as Markdown; pictures are links into the folder `artifacts`."""
    parts: list[str] = []
    for turn in history.turns:
        parts.append(f"## {' '.join(turn.message.split())}")
        parts.extend(_steps(turn, artifacts))
        if turn.answer:
            parts.append(turn.answer)
    return "\n\n".join(parts) + "\n"


def _steps(turn: Turn, artifacts: PurePosixPath | None) -> list[str]:
    parts: list[str] = []
    thoughts, remarks = iter(turn.thoughts), iter(turn.remarks)
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
                f"![{artifact.name}]({quote(str(artifacts / artifact.name))})"
                for artifact in step.artifacts
                if is_picture(artifact)
            )
        if remark := next(remarks, ""):
            parts.append(remark)
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


def _imports(history: History) -> str:
    """Return the imports that the cells need but do not contain."""
    code = "\n".join(cell.code for turn in history.turns for cell in turn.cells)
    used = (pair for pair in READY_NAMES if re.search(rf"\b{pair[0]}\b", code))
    return "\n".join(f"import {module} as {name}" for name, module in used)


def _cell(cell: CellEnded, load: Load) -> dict[str, Any]:
    """Return a cell that runs as it did; one without effect on later cells is text.

    Such a cell did not run, did not end or crashed, and would do so again.
    """
    if not cell.kept:
        output = _fenced("text", cell.observation)
        return _words(
            f"Not part of the notebook's state:\n\n{_fenced('python', cell.code)}\n\n{output}"
        )
    made = _code(cell.code, _outputs(cell, load))
    if cell.failed:
        # With this tag, Jupyter continues with the next cell after an error.
        made["metadata"] = {"tags": ["raises-exception"]}
    return made


def _outputs(cell: CellEnded, load: Load) -> list[dict[str, Any]]:
    lines = (line for line in cell.observation.splitlines() if line not in _MENTIONS)
    text = "\n".join(lines).rstrip()
    outputs: list[dict[str, Any]] = []
    if text:
        outputs.append({"output_type": "stream", "name": "stdout", "text": f"{text}\n"})
    for artifact in cell.artifacts:
        if artifact.source == "file":
            continue
        if is_picture(artifact):
            data = {artifact.media_type: base64.b64encode(load(artifact)).decode()}
        elif artifact.media_type == _TABLE:
            data = {_TABLE: load(artifact).decode("utf-8", errors="replace")}
        else:
            continue
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return outputs


def _code(source: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": outputs,
        "source": source,
    }
