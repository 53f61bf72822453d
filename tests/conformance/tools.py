"""What every tool promises, one coroutine per promise, to be run against any tool."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from assay.contracts.errors import SandboxUnavailableError, ToolError
from assay.contracts.ports import Tool
from tests.doubles.fake_sandbox import FakeSandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSubject:
    """A tool, and a way to ask for it that is right."""

    tool: Tool
    arguments: Mapping[str, Any]
    open_sandbox: Callable[[], FakeSandbox] = FakeSandbox
    """Makes a sandbox in which the arguments can be carried out."""
    in_sandbox: bool = True
    """Whether the sandbox has a part in it; a tool of a foreign server does without."""


_OF_NO_KIND: Final[list[Any]] = [[{}]]
"""Nothing that a tool could ask for."""

Check = Callable[[ToolSubject], Awaitable[None]]
"""Raises `AssertionError`, with words, when the promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPromise:
    """One sentence of the contract that a tool keeps or breaks."""

    name: str
    check: Check

    async def __call__(self, subject: ToolSubject) -> None:
        await self.check(subject)


def promise(check: Check) -> ToolPromise:
    assert isinstance(check, FunctionType)
    return ToolPromise(name=check.__name__, check=check)


@promise
async def its_description_can_be_sent_to_a_model(subject: ToolSubject) -> None:
    spec = subject.tool.spec

    assert re.fullmatch(r"[a-z][a-z0-9_]{0,63}", spec.name), spec.name
    assert spec.description.strip()
    assert spec.parameters["type"] == "object"
    assert json.loads(json.dumps(spec.parameters)) == spec.parameters


@promise
async def asked_rightly_it_answers_in_words(subject: ToolSubject) -> None:
    answer = await subject.tool.call(subject.arguments, subject.open_sandbox())

    assert answer.strip(), "nothing is no answer: a model takes it for a failure"


@promise
async def what_is_missing_is_named(subject: ToolSubject) -> None:
    for name in subject.tool.spec.parameters.get("required", ()):
        rest = {key: value for key, value in subject.arguments.items() if key != name}

        assert name in await _refusal(subject, rest)


@promise
async def what_is_of_the_wrong_kind_is_named(subject: ToolSubject) -> None:
    for name in subject.tool.spec.parameters.get("properties", {}):
        assert name in await _refusal(subject, {**subject.arguments, name: _OF_NO_KIND})


@promise
async def what_it_does_not_take_is_named(subject: ToolSubject) -> None:
    assert "no_such_name" in await _refusal(subject, {**subject.arguments, "no_such_name": 1})


@promise
async def a_lost_sandbox_is_an_error_and_no_answer(subject: ToolSubject) -> None:
    if not subject.in_sandbox:
        return
    sandbox = subject.open_sandbox()
    sandbox.closed = True
    try:
        answer = await subject.tool.call(subject.arguments, sandbox)
    except SandboxUnavailableError:
        return
    raise AssertionError(f"the sandbox is gone, and the model is told: {answer}")


async def _refusal(subject: ToolSubject, arguments: Mapping[str, Any]) -> str:
    sandbox = subject.open_sandbox()
    try:
        answer = await subject.tool.call(arguments, sandbox)
    except ToolError as error:
        assert not sandbox.programs, "it was refused, and something was run all the same"
        return str(error)
    raise AssertionError(f"asked for with {arguments}, it answers: {answer}")


TOOL_PROMISES: tuple[ToolPromise, ...] = tuple(
    found for found in list(vars().values()) if isinstance(found, ToolPromise)
)
