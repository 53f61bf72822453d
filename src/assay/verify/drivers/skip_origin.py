"""Find the location that raised a skip, from its traceback."""

from itertools import takewhile
from typing import Any

from assay.verify.drivers.audit_hook import Workspace
from assay.verify.drivers.channel import Say

_TRACE, _BEFORE = (vars(BaseException)[name] for name in ("__traceback__", "__context__"))
_DEEPEST = 20


class Places:
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
                    steps.append((path, trace.tb_lineno, self._workspace.judges(name)))
                trace = trace.tb_next
            error = _BEFORE.__get__(error)
        return steps
