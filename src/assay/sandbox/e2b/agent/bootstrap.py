"""Runs Python source as a program in the virtual machine. Standard library only.

The interpreter does the rest as for any script: threads, exit functions, exit codes.
"""

import builtins
import importlib.util
import io
import linecache
import sys
import traceback
import types


def _take_over() -> tuple[bytes, types.ModuleType]:
    _, descriptor, filename, *arguments = sys.argv
    with open(int(descriptor), "rb") as file:  # noqa: PTH123 - a descriptor
        source = file.read()
    main = types.ModuleType("__main__")
    main.__file__ = filename
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [filename, *arguments]
    sys.path[0] = ""
    # Line buffering, so that output exists when a limit ends the program.
    for stream, lines in ((sys.stdin, False), (sys.stdout, True), (sys.stderr, True)):
        errors = "backslashreplace" if lines else "replace"
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, line_buffering=lines)
    linecache.cache[filename] = (lambda: _decoded(source),)
    return source, main


def _decoded(source: bytes) -> str:
    try:
        return importlib.util.decode_source(source)
    except (SyntaxError, UnicodeDecodeError):
        return ""


def _beyond_us(error: BaseException) -> types.TracebackType | None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code in _OURS:
        frames = frames.tb_next
    return frames


def _run() -> None:
    source, main = _take_over()
    try:
        exec(compile(source, sys.argv[0], "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the point
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - this replaces the interpreter's own handler
        frames = _beyond_us(error)
        if sys.excepthook is sys.__excepthook__:
            # Unlike the interpreter's own handler, this one finds the source of a program without a
            # file.
            traceback.print_exception(type(error), error, frames)
        else:
            sys.excepthook(type(error), error, frames)
        raise SystemExit(130 if type(error) is KeyboardInterrupt else 1) from None


_OURS = (_run.__code__, _take_over.__code__)

if __name__ == "__main__":
    _KEPT = sys.modules["__main__"]
    _run()
