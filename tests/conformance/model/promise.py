"""What a promise is: a sentence about every model, and the coroutine that checks it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType

from tests.conformance.model.subject import Behaviour, ModelSubject

Check = Callable[[ModelSubject], Awaitable[None]]
"""Raises `AssertionError`, with words, when the promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPromise:
    """One sentence of the contract that a model keeps or breaks."""

    name: str
    group: str
    check: Check
    needs: frozenset[type[Behaviour]]
    observed: bool
    ability: str

    async def __call__(self, subject: ModelSubject) -> None:
        await self.check(subject)

    def excuse(self, subject: ModelSubject) -> str:
        """Say why this cannot be seen on that subject; empty when it can, and has to hold."""
        missing = sorted(behaviour.__name__ for behaviour in self.needs - subject.plays)
        if missing:
            return f"its peer cannot play {', '.join(missing)}"
        if self.observed and not subject.observes:
            return "its peer cannot tell what it saw"
        if self.ability and not getattr(subject.info, self.ability):
            return f"its models are not {self.ability}"
        return ""


def promise(
    *needs: type[Behaviour], observed: bool = False, ability: str = ""
) -> Callable[[Check], ModelPromise]:
    """Turn a coroutine function into a promise named after it.

    `observed` is for checks that ask the peer what it saw; `ability` names the field of `ModelInfo`
    without which a model promises nothing of the kind.
    """

    def promised(check: Check) -> ModelPromise:
        assert isinstance(check, FunctionType)
        return ModelPromise(
            name=check.__name__,
            group=check.__module__.rpartition(".")[2],
            check=check,
            needs=frozenset(needs),
            observed=observed,
            ability=ability,
        )

    return promised


def promises_in(module: ModuleType) -> tuple[ModelPromise, ...]:
    """Return a module's promises in the order in which they are written."""
    return tuple(found for found in vars(module).values() if isinstance(found, ModelPromise))
