"""Find where tests and skips come from: the test files, or code that replaces them."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import CodeType
from typing import Any

from assay.verify.drivers.audit_hook import Workspace
from assay.verify.drivers.channel import Say

_TRACE, _BEFORE = (vars(BaseException)[name] for name in ("__traceback__", "__context__"))
_DEEPEST = 20


class SkipOrigins:
    """Find the workspace location of a skip and the files that led to it."""

    def __init__(self, workspace: Workspace, say: Say, *kinds: "type[BaseException]") -> None:
        self._workspace = workspace
        self._say = say
        self._kinds = kinds

    def tell(self, *errors: "BaseException | None") -> str:
        """The innermost workspace location of these exceptions; empty if there is none.

        Files on the way that are not protected are reported, up to the test that called them.
        """
        for error in errors:
            steps = self._steps(error)
            led = takewhile(lambda step: not step[2], reversed(steps))
            for path in {path: None for path, _, _ in led}:
                self._say(["skips", path])
            if steps:
                path, line, _ = steps[-1]
                return f"{path}:{line}"
        if any(error is not None and type(error) not in self._kinds for error in errors):
            # An exception of another class without a traceback: code has removed its traceback.
            self._say(["skips", ""])
        return ""

    def _steps(self, error: Any) -> "list[tuple[str, int, bool]]":
        """Workspace files and lines, the outermost first, and whether each file is protected.

        Runners convert exceptions; the previous exception in the chain is then the raised one.
        """
        steps: list[tuple[str, int, bool]] = []
        for _ in range(_DEEPEST):
            if steps or error is None:
                break
            # Read through the base type, because a subclass can override the attribute.
            trace = _TRACE.__get__(error)
            while trace is not None:
                name = trace.tb_frame.f_code.co_filename
                if path := self._workspace.path(name):
                    steps.append((path, trace.tb_lineno, self._workspace.is_protected(name)))
                trace = trace.tb_next
            error = _BEFORE.__get__(error)
        return steps


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

    def replacement(self, function: Any) -> "str | None":
        """Return the file of a test's code if it is not the test file; None if it matches."""
        for layer in _layers(function):
            code = getattr(layer, "__code__", None)
            if not isinstance(code, CodeType):
                continue
            if code in self._known:
                return None
            if self._workspace.is_protected(code.co_filename):
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
