"""Solvers: a real model, or a stand-in that tests the harness without a key.

`oracle` writes the reference solution and must pass, `stub` returns the initial files and must
fail, `recorded:FOLDER` repeats the replies of another run.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from assay.agent.prompt_builder import fenced
from assay.bench.exercise import Exercise
from assay.contracts.errors import ModelRefusedError, UsageError
from assay.contracts.messages import ModelInfo, Price, Reply
from assay.contracts.ports import Model
from assay.models.open import OpenOptions
from assay.models.recording import (
    Matching,
    RecordingModel,
    ReplayingModel,
    open_recording,
    read_recording,
)
from assay.models.scripted import Script, ScriptedModel, ScriptLine
from assay.settings.load import ModelSettings, expand_home
from assay.wiring import open_model

ORACLE: Final = "oracle"
STUB: Final = "stub"
RECORDED: Final = "recorded:"
_INFO: Final = ModelInfo(
    context_tokens=1_000_000,
    max_output_tokens=100_000,
    tool_calls=False,
    price=Price(input_usd=0.0, output_usd=0.0),
    local=True,
    small=True,
)

Solver = Callable[[Exercise, Path], AbstractAsyncContextManager[Model]]
"""Opens the model for one exercise; stores its replies at the path and reuses them."""


def needs_no_model(name: str) -> bool:
    """Return whether this solver works without a language model."""
    return name in {ORACLE, STUB} or name.startswith(RECORDED)


@asynccontextmanager
async def open_solver(
    name: str, settings: ModelSettings, opening: OpenOptions, *, matching: Matching = "strict"
) -> AsyncGenerator[tuple[str, Solver]]:
    """Open the solver of this name; yields its full name and how to open it for an exercise.

    Raises:
        UsageError: If the name is unknown, or a recording does not exist.
        AssayError: The errors of `assay.wiring.open_model`.
    """
    if name in {ORACLE, STUB}:
        yield name, _scripted(name)
    elif name.startswith(RECORDED):
        yield name, _recorded(Path(name.removeprefix(RECORDED)), matching)
    else:
        async with open_model(name, settings=settings, opening=opening) as model:
            yield model.name, _remembering(model)


def _scripted(kind: str) -> Solver:
    def solver(exercise: Exercise, replies: Path) -> AbstractAsyncContextManager[Model]:
        files = exercise.stub
        if kind == ORACLE:
            files = files.with_files(exercise.reference.files)
        # In the format that prompts request from a model.
        text = "\n".join(
            f"FILE: {path}\n{fenced(path, file.content.decode())}"
            for path, file in sorted(files.files.items())
        )
        script = Script(lines=(ScriptLine(text=text, repeat=True),), info=_INFO)
        model = ScriptedModel(script, name=kind)
        return _remembering(model)(exercise, replies)

    return solver


def _recorded(folder: Path, matching: Matching) -> Solver:
    # Shells do not expand a tilde after a colon.
    replies_dir = expand_home(folder) / "replies"
    if not replies_dir.is_dir():
        raise UsageError(
            f"there are no replies in {str(folder)!r}",
            hint="name the folder of an earlier `assay bench run`",
        )

    @asynccontextmanager
    async def solver(exercise: Exercise, replies: Path) -> AsyncGenerator[Model]:
        del exercise
        recording = read_recording(replies_dir / replies.name)
        yield ReplayingModel(recording, matching=matching)

    return solver


def _remembering(model: Model) -> Solver:
    @asynccontextmanager
    async def solver(exercise: Exercise, replies: Path) -> AsyncGenerator[Model]:
        del exercise
        async with open_recording(replies, model=model.name, info=model.info) as file:
            live = RecordingModel(model, file)
            before = read_recording(replies)
            # A recorded outage is no reason not to ask now.
            kept = tuple(
                one for one in before.answers if isinstance(one.outcome, Reply | ModelRefusedError)
            )
            if kept:
                yield ReplayingModel(replace(before, answers=kept), fallback=live)
            else:
                yield live

    return solver
