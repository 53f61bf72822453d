"""Check that the tests in memory match the source files."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from assay.verify.drivers.audit_hook import Workspace

_DEEPEST = 20


class Originals:
    """Record the code of all test files before any workspace code is imported."""

    def __init__(self, order: "dict[str, Any]") -> None:
        self._workspace = Workspace(order)
        self._known: set[CodeType] = set()
        self.files = list(_python_files(order["protected"]))
        for file in self.files:
            self.add(partial(_compiled, file))

    def add(self, make: "Callable[[], CodeType]") -> None:
        """Add the code of a file, including nested code; an unreadable file has no tests."""
        try:
            waiting = [make()]
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            return
        while waiting:
            code = waiting.pop()
            self._known.add(code)
            waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]

    def stranger(self, function: Any) -> "str | None":
        """Return the file of a test's code if it is not the test file; None if it matches."""
        for layer in _layers(function):
            code = getattr(layer, "__code__", None)
            if not isinstance(code, CodeType):
                continue
            if code in self._known:
                return None
            if self._workspace.judges(code.co_filename):
                # The Hypothesis wrapper claims the location of the test, which is the next layer.
                if hasattr(layer, "is_hypothesis_test"):
                    continue
                return ""
            # Libraries may wrap tests; workspace code that is not a test may not.
            if path := self._workspace.own(code.co_filename):
                return path
        return None


def _compiled(file: Path) -> CodeType:
    return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


def _layers(function: Any) -> "Iterator[Any]":
    layer = getattr(function, "__func__", function)
    for _ in range(_DEEPEST):
        if layer is None:
            return
        yield layer
        drawn = getattr(getattr(layer, "hypothesis", None), "inner_test", None)
        layer = getattr(layer, "__wrapped__", drawn)


def _python_files(protected: "list[str]") -> "Iterator[Path]":
    for name in protected:
        path = Path(name)
        if path.is_dir():
            yield from (file.resolve() for file in sorted(path.rglob("*.py")))
        elif path.suffix == ".py" and path.is_file():
            yield path.resolve()
