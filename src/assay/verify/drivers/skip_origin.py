"""Finds where a skip was raised, whatever it says of itself."""

from itertools import takewhile
from typing import Any

from assay.verify.drivers.audit_hook import Workspace
from assay.verify.drivers.channel import Say

_TRACE, _BEFORE = (vars(BaseException)[name] for name in ("__traceback__", "__context__"))
_DEEPEST = 20


class Places:
    """Names the place of the workspace that a skip comes from, and who has a part in it."""

    def __init__(self, workspace: Workspace, say: Say, *kinds: "type[BaseException]") -> None:
        self._workspace = workspace
        self._say = say
        self._kinds = kinds

    def tell(self, *errors: "BaseException | None") -> str:
        """The innermost place that any of them comes from; empty if none was raised there.

        Files that led to it and do not judge are reported, up to the test that called them.
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
            # A class of somebody else, without a trace: it has had them removed.
            self._say(["skips", ""])
        return ""

    def _steps(self, error: Any) -> "list[tuple[str, int, bool]]":  # noqa: ANN401 - whatever was raised
        """Files and lines of the workspace, the outermost first, and whether each file judges.

        Runners turn one exception into another; then the one before is the one that was raised.
        """
        steps: list[tuple[str, int, bool]] = []
        for _ in range(_DEEPEST):
            if steps or error is None:
                break
            # By the type's own means: a class can say of itself what it likes.
            trace = _TRACE.__get__(error)
            while trace is not None:
                name = trace.tb_frame.f_code.co_filename
                if path := self._workspace.path(name):
                    steps.append((path, trace.tb_lineno, self._workspace.judges(name)))
                trace = trace.tb_next
            error = _BEFORE.__get__(error)
        return steps
