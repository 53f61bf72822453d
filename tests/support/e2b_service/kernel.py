"""A small interpreter that remembers: cells in, lines of JSON out, as E2B's own sends them."""

import ast
import base64
import contextlib
import io
import json
import signal
import sys
import time
import traceback
from typing import Any, cast

_OUT = sys.stdout


def tell(kind: str, **what: Any) -> None:
    # An interrupt waits: half a line would be no line at all.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    _OUT.write(json.dumps({"type": kind, **what}) + "\n")
    _OUT.flush()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


class _Stream(io.TextIOBase):
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._held = ""

    def write(self, text: str) -> int:
        self._held += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        held, self._held = self._held, ""
        if held:
            tell(self._kind, text=held, timestamp=time.time_ns())


def show(value: object, *, main: bool) -> None:
    forms: dict[str, Any] = {"text": repr(value)}
    if hasattr(value, "_repr_html_"):
        forms["html"] = cast("Any", value)._repr_html_()
    if hasattr(value, "_repr_png_"):
        forms["png"] = base64.b64encode(cast("Any", value)._repr_png_()).decode()
    tell("result", is_main_result=main, **forms)


def run(code: str, space: dict[str, Any]) -> None:
    tree = ast.parse(code, "<cell>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), space)  # noqa: S102 - inside a sandbox
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)  # noqa: S307 - inside a sandbox
        if value is not None:
            show(value, main=True)


def display(value: object) -> None:
    show(value, main=False)


def main() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "display": display}
    # Cells come by another way than what a cell reads, and import what lies beside it.
    cells, sys.stdin = sys.stdin, io.StringIO()
    sys.path[0] = ""
    for count, line in enumerate(cells, start=1):
        streams = (_Stream("stdout"), _Stream("stderr"))
        try:
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                run(json.loads(line)["code"], space)
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is told
            shown = "".join(traceback.format_exception(error))
            tell("error", name=type(error).__name__, value=str(error), traceback=shown)
        for stream in streams:
            stream.flush()
        tell("number_of_executions", execution_count=count)
        tell("end_of_execution")


if __name__ == "__main__":
    main()
