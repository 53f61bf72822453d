"""Short forms such as `assay --goal …`, and the commands they stand for. Pure."""

import shlex
from dataclasses import dataclass
from typing import Final

from assay.contracts.errors import UsageError

_WITH_MODEL: Final = frozenset({"run", "chat", "serve"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortForm:
    """The root options that replace a command."""

    goal: str | None = None
    benchmarks: bool = False
    benchmarks_limit: int | None = None
    model: str | None = None


def command_for(short: ShortForm, named: str | None = None) -> tuple[str, ...]:
    """Return the command that a short form stands for; `named` is a command given with it.

    Raises:
        UsageError: If the options contradict each other.
    """
    if named:
        _refuse_beside(short, named)
    if short.goal is not None and short.benchmarks:
        raise UsageError("--goal and --benchmarks exclude each other", hint="use one of them")
    if short.benchmarks_limit is not None and not short.benchmarks:
        raise UsageError("--benchmarks-limit needs --benchmarks", hint="add --benchmarks")
    model = () if short.model is None else ("--model", short.model)
    if short.goal is not None:
        if not short.goal.strip():
            raise UsageError("the goal is empty", hint='assay run "write …"')
        # Behind the options, so that a goal that begins with a dash is one.
        return ("run", *model, "--", short.goal)
    if short.benchmarks:
        limit = short.benchmarks_limit
        most = () if limit is None else ("--limit", str(limit))
        return ("bench", "run", "polyglot", *most, *model)
    raise UsageError(
        "--model alone names no command",
        hint=f"`assay chat --model {short.model}` starts a session; --goal starts a run",
    )


def _refuse_beside(short: ShortForm, named: str) -> None:
    if short == ShortForm(model=short.model):
        hint = f"`assay {named} --help` lists its options"
        if named in _WITH_MODEL:
            hint = f"write: assay {named} --model {short.model}"
        raise UsageError(f"--model cannot stand before `{named}`", hint=hint)
    raise UsageError(
        f"--goal and --benchmarks cannot be combined with the command {named!r}",
        hint=f"leave one out; `assay {named} --help` lists its options",
    )


def written(words: tuple[str, ...]) -> str:
    """Return the command as typed in a shell."""
    return shlex.join(("assay", *words))
