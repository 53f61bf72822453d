"""Interface of the MCP tools: validated arguments, and answers as text and values."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.execution import WORKSPACE
from assay.contracts.ports import OnOutput
from assay.mcp.workspaces import Workspace
from assay.tools.arguments import Arguments

_LONGEST_PATH = 4096


class WorkspaceArguments(Arguments):
    """Arguments of every tool."""

    workspace: str = Field(
        default="",
        max_length=100,
        description="The handle of a workspace, from an earlier answer; none the first time, "
        "`new` for one more.",
    )


class PathArguments(WorkspaceArguments):
    """Arguments of every tool that takes one path."""

    path: str = Field(
        min_length=1, max_length=_LONGEST_PATH, description="Path from the workspace root."
    )


class Answer(BaseModel):
    """Structured answer of every tool."""

    model_config = ConfigDict(frozen=True)

    workspace: str = Field(description="Give this as `workspace` to go on in the same workspace.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in an answer."""

    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer: values for programs, text for models, images for both.

    A failing program is an answer. A call that could not be carried out at all raises.
    """

    answer: Answer
    text: str
    images: tuple[Image, ...] = ()


ArgumentsT = TypeVar("ArgumentsT", bound=WorkspaceArguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool(Generic[ArgumentsT]):
    """One tool of an MCP server."""

    name: str
    title: str
    description: str
    arguments: type[ArgumentsT]
    answer: type[Answer]
    call: Callable[[ArgumentsT, Workspace, OnOutput], Awaitable[Said]]
    reads_only: bool = False
    destroys: bool = False
    repeatable: bool = False
    """Whether a repeated call has no further effect."""


AnyTool = ServedTool[Any]


def path_in(written: str) -> PurePosixPath:
    """Return a path from the workspace root; the sandbox checks that it stays inside."""
    path = PurePosixPath(written)
    return path.relative_to(WORKSPACE) if path.is_relative_to(WORKSPACE) else path
