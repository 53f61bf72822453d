"""The tool that searches files. The model's pattern runs only in the sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from assay.contracts.errors import ToolError
from assay.contracts.execution import PythonCode
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.tools.arguments import (
    Arguments,
    build_spec,
    read_arguments,
    told_to_the_model,
    workspace_path,
)
from assay.tools.files import QUIET_DIRECTORIES

_TIMEOUT_S = 20.0
_MOST_MATCHES = 100
_REFUSED = 3
"""The program's exit code for an invalid request; no other end has it."""

# A pattern can run without end or use all memory. So the program runs in the sandbox, whose limits
# end it.
_PROGRAM = f"""
import os, re, sys
pattern, root, quiet = sys.argv[1], sys.argv[2], set(sys.argv[3].split(","))
try:
    expression = re.compile(pattern)
except (re.error, OverflowError, RecursionError) as error:
    print(error)
    sys.exit({_REFUSED})
if not os.path.lexists(root):
    print("there is no " + repr(root))
    sys.exit({_REFUSED})
def files():
    if not os.path.isdir(root):
        yield root
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in quiet)
        for name in sorted(names):
            yield os.path.normpath(os.path.join(folder, name))
left = {_MOST_MATCHES}
for path in files():
    if not os.path.isfile(path) or os.path.islink(path) or os.path.getsize(path) > 4000000:
        continue
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        continue
    if b"\\0" in content[:8192]:
        continue
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if expression.search(line):
            if not left:
                print("[... more than {_MOST_MATCHES} lines match; search for less ...]")
                sys.exit()
            left -= 1
            print(path + ":" + str(number) + ": " + line.strip()[:300], flush=True)
""".lstrip()


class _SearchArguments(Arguments):
    pattern: str = Field(min_length=1, max_length=1000, description="A Python regular expression.")
    path: str = Field(default=".", description="A file or directory, from the workspace root.")


_SEARCH = build_spec(
    "search", "Search files by a regular expression; gives path, line and text.", _SearchArguments
)


@dataclass(frozen=True, slots=True)
class Search:
    """Finds lines by a regular expression."""

    @property
    def spec(self) -> ToolSpec:
        return _SEARCH

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        del on_output
        wanted = read_arguments(_SEARCH, _SearchArguments, arguments)
        path = workspace_path(wanted.path)
        with told_to_the_model():
            program = PythonCode(
                source=_PROGRAM.encode(),
                filename="search.py",
                args=(wanted.pattern, str(path), ",".join(sorted(QUIET_DIRECTORIES))),
                timeout_s=min(_TIMEOUT_S, sandbox.limits.wall_s),
            )
        result = await sandbox.run(program)
        found = result.stdout.strip()
        if result.exit_code == _REFUSED:
            raise ToolError(f"{wanted.pattern!r} cannot be searched for in {path}: {found}")
        if not result.succeeded:
            why = f"[... the search was ended early: {result.reason.value}; search for less ...]"
            return f"{found}\n{why}".strip()
        return found or f"Nothing in {path} matches {wanted.pattern!r}."
