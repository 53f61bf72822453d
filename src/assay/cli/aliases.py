"""What the short forms of commands stand for: `assay --goal …` and its like. Pure."""

import shlex
from dataclasses import dataclass

from assay.contracts.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortForm:
    """What was written before any command."""

    goal: str | None = None
    benchmarks: bool = False
    benchmarks_limit: int | None = None
    model: str | None = None


def command_for(short: ShortForm, named: str | None = None) -> tuple[str, ...]:
    """Return the words of the command that is meant; `named` is one that was written besides.

    Raises:
        UsageError: If they do not go together.
    """
    if named:
        _refuse_beside(short, named)
    if short.goal is not None and short.benchmarks:
        raise UsageError("--goal and --benchmarks are two things", hint="ask for one of them")
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
        "--model alone says nothing to do",
        hint=f"`assay chat --model {short.model}` talks with it; --goal gives it work",
    )


def _refuse_beside(short: ShortForm, named: str) -> None:
    if short == ShortForm(model=short.model):
        hint = f"write it behind: assay {named} --model {short.model}"
        raise UsageError(f"--model stands before `{named}`", hint=hint)
    raise UsageError(
        f"--goal and --benchmarks stand for a command, and there is one already: {named!r}",
        hint=f"leave one out; `assay {named} --help` shows what it takes",
    )


def written(words: tuple[str, ...]) -> str:
    """Return the command as a person would type it."""
    return shlex.join(("assay", *words))
