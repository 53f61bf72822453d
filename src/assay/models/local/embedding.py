"""Local embeddings from a GGUF file, computed in a separate process.

Any model works; embedding models are smaller, faster and better. The mean of ordinary texts is
subtracted: otherwise the vectors of a text model point in nearly the same direction, and every text
would be similar to every other.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Final

from assay.contracts.errors import ModelUnavailableError
from assay.models.local.llama_process import (
    Engine,
    EngineLostError,
    EngineMessage,
    EngineOwner,
    EnginePlan,
    find_engine,
    worthwhile_threads,
)
from assay.models.local.model import check_weights_file

_CONTEXT_TOKENS: Final = 512
"""The context of most embedding models in training."""
_MAX_CHARS: Final = 1_500
_LEAST_CHARS: Final = 200
_SILENCE_S: Final = 120.0
_ORDINARY: Final = (
    "Write a function that sorts a list of numbers",
    "TypeError: unsupported operand type(s)",
    "import os\nprint(os.getcwd())",
    "Read a table and draw a picture of it",
    "for item in items:\n    total += item",
    "AssertionError: expected one value, got another",
    "Make a page that shows the weather of today",
    "A class with a method that opens a file",
)
"""Texts whose mean vector is the common part of all texts."""

Vector = tuple[float, ...]


@asynccontextmanager
async def open_local_embedding(path: Path) -> AsyncGenerator["LocalEmbedding"]:
    """Open an embedding model; its process starts with the first text and ends with the context.

    Raises:
        MissingExtraError: If the engine is not installed.
        UsageError: If the engine cannot read the file.
    """
    find_engine()
    check_weights_file(path)
    embedding = LocalEmbedding(path)
    try:
        yield embedding
    finally:
        await embedding.close()


class LocalEmbedding(EngineOwner):
    """An embedding model in a child process."""

    def __init__(self, path: Path) -> None:
        plan = EnginePlan(
            model_path=path,
            context_tokens=_CONTEXT_TOKENS,
            threads=worthwhile_threads(),
            embeddings=True,
        )
        super().__init__(plan)
        self.name = f"local:{path.name}:{path.stat().st_size}"
        """Distinguishes its vectors from those of other models."""
        self._middle: Vector = ()

    async def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text.

        Raises:
            ModelUnavailableError: If the model does not start, breaks off, or returns no vectors.
        """
        async with self._turn:
            try:
                engine = self._engine or await self.start()
                if not self._middle:
                    ordinary = [await self._vector(engine, text) for text in _ORDINARY]
                    self._middle = tuple(map(fmean, zip(*ordinary, strict=True)))
                found = [await self._vector(engine, text) for text in texts]
            except EngineLostError as error:
                await self.close()
                raise ModelUnavailableError(f"no embeddings from {self.name}: {error}") from error
            except BaseException:
                # The stream may contain half an answer, so the process cannot be used again.
                await self.close()
                raise
        return [
            tuple(number - common for number, common in zip(vector, self._middle, strict=True))
            for vector in found
        ]

    async def _vector(self, engine: Engine, text: str) -> Vector:
        """Return the vector of a text, truncated to the context size."""
        text = text[:_MAX_CHARS].strip() or "-"
        while True:
            answer = await self._ask(engine, text)
            if answer.end is not None and len(answer.end.vectors) == 1:
                return answer.end.vectors[0]
            if answer.error is None or len(text) < _LEAST_CHARS:
                why = answer.error.message if answer.error else "there is no vector in its answer"
                raise ModelUnavailableError(f"no embeddings from {self.name}: {why}")
            text = text[: len(text) * 2 // 3]

    async def _ask(self, engine: Engine, text: str) -> EngineMessage:
        number = next(self._numbers)
        await engine.send({"ask": number, "body": {"input": [text]}})
        while True:
            message = await engine.receive(timeout_s=_SILENCE_S)
            if message.of == number and (message.end or message.error):
                return message
