"""Which Python modules programs may import: a policy on the source, not isolation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.errors import PolicyError
from assay.contracts.execution import Command, Program, PythonCode
from assay.screening.rules import ScreeningPolicy
from assay.screening.scan import Screening

_ALWAYS: Final = "__future__"
_RULES: Final = frozenset({"import", "dynamic_import", "unreadable"})
_PYTHON: Final = frozenset({".py", ".pyw"})
_PROGRAM: Final = PurePosixPath("program.py")
_HINT: Final = (
    "the lists are the executor's settings executor.allow_modules and executor.deny_modules"
)


@dataclass(frozen=True, kw_only=True)
class _OnlyModules(ScreeningPolicy):
    """The screening policy that checks imported modules only."""

    only: tuple[str, ...] = ()

    @cached_property
    def imports(self) -> Mapping[str, str]:
        return dict.fromkeys(self.deny_imports, "is denied here")

    @cached_property
    def calls(self) -> Mapping[str, str]:
        return {}

    @cached_property
    def builders(self) -> Mapping[str, str]:
        return {}

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        return {}

    def refused_import(self, module: str) -> tuple[str, str] | None:
        """Return the name by which a module is refused, and why; the most specific name decides."""
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in self.imports:
                return name, self.imports[name]
            if name in self.only or name == _ALWAYS:
                return None
        return (module, "is not among the allowed modules") if self.only else None

    def is_outside(self, path: str) -> bool:
        del path
        return False


class ModuleRules:
    """An allowlist and a denylist of modules; an empty allowlist allows all."""

    def __init__(self, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._active = bool(allow or deny)
        self._screen = Screening(_OnlyModules(only=tuple(allow), deny_imports=tuple(deny)))

    def check_work(self, work: Program | str) -> None:
        """Check a program or the source of a cell.

        Raises:
            PolicyError: If it imports a module that is not allowed.
        """
        match work:
            case PythonCode(source=source):
                self.check_file(_PROGRAM, source)
            case str():
                self.check_file(_PROGRAM, work.encode("utf-8", errors="replace"))
            case Command(argv=[program, *arguments]) if _is_python(program) and "-c" in arguments:
                after = arguments[arguments.index("-c") + 1 :]
                self.check_file(_PROGRAM, "".join(after[:1]).encode("utf-8", errors="replace"))
            case Command():
                pass

    def check_file(self, path: PurePosixPath, content: bytes) -> None:
        """Check a file before it is written into a workspace.

        Raises:
            PolicyError: If it is Python and imports a module that is not allowed.
        """
        if not self._active or path.suffix.lower() not in _PYTHON:
            return
        for finding in self._screen(path, content):
            if finding.rule in _RULES:
                where = "" if path is _PROGRAM else f"{str(path)!r:.200}, "
                raise PolicyError(f"{where}line {finding.line}: {finding.explanation}", hint=_HINT)


def _is_python(program: str) -> bool:
    return PurePosixPath(program).name.startswith("python")
