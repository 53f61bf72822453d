"""The blind track: docs and stubs in, files out, tests hidden, their whole output after each try.

This is the protocol of the public leaderboard. The prompts use the wording of its harness; the file
format of replies is Assay's.
"""

import re
import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from assay.agent.edits.apply import Applied, Edit, apply_edits
from assay.agent.prompt_builder import fenced, language_of, prompt
from assay.agent.reply_parser.parse import ParsedReply, describe_protocol, understand_text
from assay.bench.exercise import Exercise
from assay.bench.score import Judge, Judgement
from assay.bench.toolchains.toolchain import Commands
from assay.contracts.errors import ContextOverflowError
from assay.contracts.messages import Message, Reply, Request, StopReason, Usage
from assay.contracts.ports import Model
from assay.contracts.workspace import Tree
from assay.verify.judged_tree import matches

_ADDENDUM: Final = """\
####

Use the above instructions to modify the supplied files: {file_list}
Don't change the names of existing functions or classes, as they may be referenced from other \
code like unit tests, etc.
Only use standard libraries, don't suggest installing any packages.
"""
FAILURES: Final = """\
####

See the testing errors above.
The tests are correct, don't try and change them.
Fix the code in {file_list} to resolve the errors.
"""
_REPAIRS: Final = 3
"""Repeated requests within a try after invalid replies."""
_LOCAL_OUTPUT_TOKENS: Final = 2048
"""Limit for small models, which could otherwise repeat themselves without end."""
_LAZY: Final = re.compile(r"^[+]? *[#].* [.][.][.] ", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Account:
    """The log of one exercise."""

    judgements: list[Judgement] = field(default_factory=list[Judgement])
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    malformed: int = 0
    unusable: bool = False
    """The last reply was invalid, also after repeated requests."""
    exhausted: bool = False
    out_of_budget: bool = False
    lazy_comments: int = 0
    model_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindSitting:
    """One exercise with the model and the scorer."""

    exercise: Exercise
    commands: Commands
    model: Model
    judge: Judge
    provable: bool = True
    tries: int = 2

    async def carry_out(self) -> Account:
        """Ask, test, show the output, and ask again, up to the number of tries.

        Raises:
            ModelUnavailableError: If the model does not answer.
            ModelRefusedError: If the model refuses the request.
            BudgetExceededError: If a cap does not allow the call.
            SandboxUnavailableError: If no sandbox is available.
        """
        account = Account()
        tree = self.exercise.stub
        messages = _opening(self.exercise)
        for number in range(1, self.tries + 1):
            try:
                tree, messages = await self._one_try(tree, messages, account)
            except ContextOverflowError as error:
                account.exhausted, account.reason = True, str(error)
                break
            judgement = await self.judge.judge(
                self.exercise, self.commands, tree, provable=self.provable
            )
            account.attempts += 1
            account.judgements.append(judgement)
            if judgement.passed or number == self.tries:
                break
            said = f"{judgement.output}\n{FAILURES.format(file_list=names_of(self.exercise))}"
            messages = (*messages, Message(role="user", text=said))
        return account

    async def _one_try(
        self, tree: Tree, messages: tuple[Message, ...], account: Account
    ) -> tuple[Tree, tuple[Message, ...]]:
        for _ in range(1 + _REPAIRS):
            request = self._request(messages)
            begun = time.monotonic()
            reply = await self.model.reply(request)
            account.model_s += time.monotonic() - begun
            account.usage += reply.usage
            messages = (*messages, _closed(reply, request))
            account.lazy_comments += len(_LAZY.findall(reply.message.text))
            result = self._applied(tree, reply)
            account.unusable = not isinstance(result, Tree)
            if isinstance(result, Tree):
                return result, messages
            account.malformed += 1
            messages = (*messages, Message(role="user", text=f"That cannot be used. {result}"))
        return tree, messages

    def _request(self, messages: tuple[Message, ...]) -> Request:
        facts = self.model.facts
        sole = self.exercise.solution[0] if len(self.exercise.solution) == 1 else None
        led = facts.supports_prefill and sole is not None
        return Request(
            messages=messages,
            max_output_tokens=_LOCAL_OUTPUT_TOKENS if facts.local else None,
            temperature=0.0,
            prefill=f"```{language_of(sole)}\n" if led and sole is not None else "",
            stop=("\n```",) if led else (),
        )

    def _applied(self, tree: Tree, reply: Reply) -> Tree | str:
        """Return the solution with the reply's edits, or why they are invalid."""
        solution = self.exercise.solution
        understood: ParsedReply = understand_text(
            reply.message.text,
            sole_target=solution[0] if len(solution) == 1 else None,
            tools=frozenset(),
            ended=reply.stop_reason is StopReason.ENDED,
        )
        edits = [ask for ask in understood.asks if isinstance(ask, Edit)]
        if not edits:
            return " ".join(understood.problems) or "There is no file in it."
        result = apply_edits(tree, edits, may_change=self._may_change)
        return result.tree if isinstance(result, Applied) else result.feedback

    def _may_change(self, path: PurePosixPath) -> str:
        if matches(path, self.exercise.writable):
            return ""
        return f"`{path}` is not among the files to change: {', '.join(self.exercise.writable)}"


def names_of(exercise: Exercise) -> str:
    """Return the base names of the files to write, as in prompts."""
    return " ".join(path.name for path in exercise.solution)


def _opening(exercise: Exercise) -> tuple[Message, ...]:
    told = prompt("direct")
    if len(exercise.solution) != 1:
        told = f"{told}\n\n{describe_protocol(())}"
    files = "\n\n".join(
        f"{path}\n{fenced(path, exercise.workspace.text(path) or '')}" for path in exercise.solution
    )
    said = f"{exercise.docs}{_ADDENDUM.format(file_list=names_of(exercise))}\n{files}"
    return (Message(role="system", text=told), Message(role="user", text=said))


def _closed(reply: Reply, request: Request) -> Message:
    """Return the reply, with the fence closed that the stop word cut off."""
    if request.prefill and reply.stop_reason is StopReason.ENDED:
        return Message(role="assistant", text=f"{reply.message.text.rstrip()}\n```")
    return reply.message
