"""What the options of the older tool mean today: `assay --goal …` and its like. Pure."""

import shlex
from dataclasses import dataclass

from assay.contracts.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderWords:
    """What was written before any command."""

    goal: str | None = None
    benchmarks: bool = False
    benchmarks_limit: int | None = None
    model: str | None = None


def command_for(older: OlderWords, named: str | None = None) -> tuple[str, ...]:
    """Return the words of the command that is meant; `named` is one that was written besides.

    Raises:
        UsageError: If they do not go together.
    """
    if named:
        _refuse_beside(older, named)
    if older.goal is not None and older.benchmarks:
        raise UsageError("--goal and --benchmarks are two things", hint="ask for one of them")
    if older.benchmarks_limit is not None and not older.benchmarks:
        raise UsageError("--benchmarks-limit needs --benchmarks", hint="add --benchmarks")
    model = () if older.model is None else ("--model", older.model)
    if older.goal is not None:
        if not older.goal.strip():
            raise UsageError("the goal is empty", hint='assay run "write …"')
        # Behind the options, so that a goal that begins with a dash is one.
        return ("run", *model, "--", older.goal)
    if older.benchmarks:
        limit = older.benchmarks_limit
        most = () if limit is None else ("--limit", str(limit))
        return ("bench", "run", "polyglot", *most, *model)
    raise UsageError(
        "--model alone says nothing to do",
        hint=f"`assay chat --model {older.model}` talks with it; --goal gives it work",
    )


def _refuse_beside(older: OlderWords, named: str) -> None:
    if older == OlderWords(model=older.model):
        hint = f"write it behind: assay {named} --model {older.model}"
        raise UsageError(f"--model stands before `{named}`", hint=hint)
    raise UsageError(
        f"--goal and --benchmarks stand for a command, and there is one already: {named!r}",
        hint=f"leave one out; `assay {named} --help` shows what it takes",
    )


def written(words: tuple[str, ...]) -> str:
    """Return the command as a person would type it."""
    return shlex.join(("assay", *words))
