"""Request and response models for sessions."""

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.chat import CellEnded, Exhibit, ToolUsed
from assay.contracts.chat_history import Turn
from assay.contracts.messages import Usage
from assay.server.api.field_types import Line, Message, ModelName
from assay.server.db.models import SessionRow


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewSession(_In):
    """A session to create."""

    title: Line = Field(default="", examples=["Sales of the north"])
    model: ModelName = Field(default="", examples=["auto"])


class RenameRequest(_In):
    """A new title for a session."""

    title: Line = Field(examples=["Sales of the south"])


class MessageRequest(_In):
    """A message to the model."""

    message: Message = Field(examples=["What is the mean price in sales.csv?"])


class ChatRequest(_In):
    """A message, in an existing or a new session."""

    message: Message = Field(examples=["What is 2 ** 64?"])
    session_id: str | None = Field(
        default=None, pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=[None]
    )
    model: ModelName = Field(default="", examples=[""])


class SessionShape(BaseModel):
    """One session."""

    id: str = Field(examples=["brisk-otter-4f2a"])
    title: str = Field(examples=["Sales of the north"])
    created_at: float = Field(description="Seconds since the epoch", examples=[1763280000.0])
    updated_at: float = Field(examples=[1763280060.5])
    turns: int = Field(examples=[2])
    model: str = Field(examples=["openai:gpt-5"])
    busy: bool = Field(description="Whether a turn is under way")

    @classmethod
    def of(cls, row: SessionRow) -> "SessionShape":
        """Build the response for a session."""
        return cls(
            id=row.id,
            title=row.title,
            created_at=row.created_at,
            updated_at=row.updated_at,
            turns=row.turns,
            model=row.model,
            busy=row.busy,
        )


class SessionList(BaseModel):
    """Sessions, the last used one first."""

    sessions: list[SessionShape]


class TurnBegun(BaseModel):
    """A started turn; its events follow in the session's stream."""

    session_id: str = Field(examples=["brisk-otter-4f2a"])
    turn: int = Field(examples=[1])


class Cancelled(BaseModel):
    """Whether a turn was running."""

    cancelled: bool


class Undone(BaseModel):
    """The turn that was undone."""

    turn: int


class FileShape(BaseModel):
    """A file of a workspace."""

    path: str = Field(examples=["data/sales.csv"])
    size_bytes: int = Field(examples=[48211])


class FileList(BaseModel):
    """Files, by path."""

    files: list[FileShape]


class LoadedFile(FileShape):
    """A file that was added to the workspace."""

    about: str = Field(description="What the model sees of it", examples=["3 rows, 2 columns"])


class ArtifactShape(BaseModel):
    """An artifact of a session. Its content and media type are untrusted."""

    name: str = Field(examples=["figure-1.png"])
    media_type: str = Field(examples=["image/png"])
    size_bytes: int = Field(examples=[20481])
    sha256: str
    source: Literal["figure", "table", "file"]
    path: str = Field(description="Where a cell wrote it; empty if it was only shown")
    url: str = Field(examples=["/v1/sessions/brisk-otter-4f2a/artifacts/figure-1.png"])

    @classmethod
    def of(cls, exhibit: Exhibit, session_id: str) -> "ArtifactShape":
        """Build the response for an artifact."""
        return cls(
            name=exhibit.name,
            media_type=exhibit.media_type,
            size_bytes=exhibit.size_bytes,
            sha256=exhibit.sha256,
            source=exhibit.source,
            path=exhibit.path,
            url=f"/v1/sessions/{session_id}/artifacts/{exhibit.name}",
        )


class ArtifactList(BaseModel):
    """Artifacts of a session, the oldest first."""

    artifacts: list[ArtifactShape]


class UsageShape(BaseModel):
    """Tokens, calls and cost."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    cost_usd: float | None = Field(default=0.0, description="null if the price is not known")

    @classmethod
    def of(cls, usage: Usage) -> "UsageShape":
        """Build the response for usage."""
        return cls(
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
            calls=usage.calls,
            cost_usd=usage.cost_usd,
        )


class StepShape(BaseModel):
    """One cell or tool call of a turn."""

    thought: str = Field(examples=["I compute it."])
    code: str = Field(examples=["print(2 ** 64)"])
    observation: str = Field(examples=["18446744073709551616"])
    failed: bool
    remark: str = Field(
        default="", description="What the model wrote after the code, before it saw the output"
    )


class ChatAnswer(BaseModel):
    """A whole turn: the model's text, the code and its results, and the answer."""

    thought: str = Field(description="Before the last cell", examples=["I compute it."])
    code: str = Field(description="Of the last cell", examples=["print(2 ** 64)"])
    observation: str = Field(
        description="What the last cell printed and showed", examples=["18446744073709551616"]
    )
    answer: str = Field(examples=["It is 18446744073709551616."])
    session_id: str = Field(examples=["brisk-otter-4f2a"])
    turn: int = Field(examples=[1])
    status: Literal["answered", "out_of_steps", "interrupted", "failed"]
    steps: list[StepShape]
    artifacts: list[ArtifactShape]
    usage: UsageShape


def answer_of(turn: Turn, session_id: str, usage: Usage) -> ChatAnswer:
    """Build the response for a finished turn."""
    said = iter(zip(turn.thoughts, turn.remarks, strict=True))
    steps = [_step(step, said) for step in turn.steps]
    cells = [
        shown for shown, step in zip(steps, turn.steps, strict=True) if isinstance(step, CellEnded)
    ]
    last = cells[-1] if cells else StepShape(thought="", code="", observation="", failed=False)
    return ChatAnswer(
        thought=last.thought,
        code=last.code,
        observation=last.observation,
        answer=text_of(turn.answer),
        session_id=session_id,
        turn=turn.number,
        status=turn.status or "interrupted",
        steps=steps,
        artifacts=[
            ArtifactShape.of(made, session_id) for cell in turn.cells for made in cell.artifacts
        ],
        usage=UsageShape.of(usage),
    )


def _step(step: CellEnded | ToolUsed, said: Iterator[tuple[str, str]]) -> StepShape:
    if isinstance(step, ToolUsed):
        return StepShape(
            thought=text_of(step.thought),
            code=text_of(f"{step.tool}({step.arguments})"),
            observation=text_of(step.answer),
            failed=step.failed,
        )
    thought, remark = next(said, ("", ""))
    return StepShape(
        thought=text_of(thought),
        code=text_of(step.code),
        observation=text_of(step.observation),
        failed=step.failed,
        remark=text_of(remark),
    )


def text_of(text: str) -> str:
    """Return text without lone surrogates, which a model or program may have written."""
    return text.encode("utf-8", "replace").decode()
