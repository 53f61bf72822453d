"""The tool that searches files: lines with context, in files that a glob selects.

The pattern can run without end or use all memory. So the search runs in the sandbox, whose limits
end it. If ripgrep is installed there, it selects the files, which is faster in large trees.
"""

from typing import Annotated, Final

from pydantic import Field

from assay.contracts.errors import ToolError
from assay.contracts.execution import PythonCode
from assay.contracts.ports import Sandbox
from assay.tools.arguments import tool, workspace_path

QUIET_DIRECTORIES: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".venv", "venv", "__pycache__", ".pytest_cache", ".mypy_cache"),
        *(".ruff_cache", ".tox", "node_modules", "target", ".gradle", ".idea"),
    }
)
"""Directories with many generated files."""

_TIMEOUT_S: Final = 20.0
_MOST_MATCHES: Final = 100
_MOST_CHARS: Final = 16_000
_MOST_CONTEXT: Final = 20
_LONGEST_LINE_CHARS: Final = 300
_MOST_FILE_BYTES: Final = 4_000_000
_REFUSED: Final = 3
"""The program's exit code for an invalid request; no other end has it."""

PROGRAM: Final = f"""
import fnmatch, os, re, shutil, subprocess, sys

pattern, root, glob, context, quiet = sys.argv[1:6]
quiet, context = frozenset(quiet.split(",")), int(context)
try:
    expression = re.compile(pattern)
except (re.error, OverflowError, RecursionError) as error:
    print(error)
    sys.exit({_REFUSED})
if not os.path.lexists(root):
    print("there is no " + repr(root))
    sys.exit({_REFUSED})

# ripgrep reads some expressions in another way.
OTHER = re.compile(
    r"\\\\[<>ABZNUuxnrfv0-9]|\\(\\?[^:i]|\\[\\[|\\[:|&&|--|~~|[^\\x20-\\x7e]"
)
# Over a whole file, these can miss a line that matches by itself.
PER_LINE = re.compile(r"\\\\[AZ]|\\(\\?<?[=!]|\\(\\?\\(")
whole = None if PER_LINE.search(pattern) else re.compile(pattern, re.MULTILINE)


def listed_by_ripgrep():
    program = shutil.which("rg")
    if program is None or OTHER.search(pattern) or not quiet.isdisjoint(root.split("/")):
        return None
    command = [program, "--no-config", "--files-with-matches", "--null", "--hidden", "--no-ignore"]
    command += ["--no-messages", "--crlf", "--max-filesize", "{_MOST_FILE_BYTES}"]
    for name in sorted(quiet):
        command += ["--glob", "!" + name + "/"]
    result = subprocess.run([*command, "-e", pattern, "--", root], capture_output=True)
    if result.returncode not in (0, 1):
        return None
    names = os.fsdecode(result.stdout).split("\\0")
    return sorted((os.path.normpath(name) for name in names if name), key=in_order)


def in_order(path):
    # As in a walk: the files of a folder before its folders.
    *folders, name = path.split("/")
    return [(1, folder) for folder in folders] + [(0, name)]


def listed_by_walking():
    if not os.path.isdir(root):
        yield os.path.normpath(root)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in quiet)
        for name in sorted(names):
            yield os.path.normpath(os.path.join(folder, name))


def expanded(text):
    # The alternatives of globs such as *.{{c,h}}.
    braces = re.fullmatch(r"(.*?)\\{{([^{{}}]*)\\}}(.*)", text)
    if braces is None:
        return [text]
    before, choices, after = braces.groups()
    return [each for choice in choices.split(",") for each in expanded(before + choice + after)]


WANTED = expanded(glob.removeprefix("!"))


def is_selected(path):
    found = not glob or any(
        path.startswith(wanted.rstrip("/") + "/") or fnmatch.fnmatchcase(name, each)
        for wanted in WANTED
        for each in (wanted, wanted.removeprefix("**/"), wanted.replace("/**/", "/"))
        for name in (path, os.path.basename(path))
    )
    return found != glob.startswith("!")


def read(path):
    if os.path.islink(path) or not os.path.isfile(path):
        return ""
    if os.path.getsize(path) > {_MOST_FILE_BYTES}:
        return ""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return ""
    if b"\\0" in content[:8192]:
        return ""
    text = content.decode("utf-8", "replace").replace("\\r\\n", "\\n")
    return text if whole is None or whole.search(text) else ""


def short(line):
    most = {_LONGEST_LINE_CHARS}
    return line if len(line) <= most else line[:most] + " [...]"


shown = printed = left_out = 0
files_left_out = 0
named = listed_by_ripgrep()
for path in listed_by_walking() if named is None else named:
    if not is_selected(path):
        continue
    lines = read(path).split("\\n")
    last, until, titled, skipped = 0, 0, False, False
    for number, line in enumerate(lines, 1):
        rows = []
        if expression.search(line) and (line or number < len(lines)):
            if shown >= {_MOST_MATCHES} or printed > {_MOST_CHARS}:
                left_out += 1
                skipped = True
                until = 0
                continue
            shown += 1
            if not titled:
                rows.append(("\\n" if shown > 1 else "") + path)
                titled = True
            first = max(last + 1, number - context)
            if context and last and first > last + 1:
                rows.append("--")
            rows += [f"{{at}}-{{short(lines[at - 1])}}" for at in range(first, number)]
            rows.append(f"{{number}}:{{short(line)}}")
            until = number + context
        elif number <= until and (line or number < len(lines)):
            rows.append(f"{{number}}-{{short(line)}}")
        if rows:
            last = number
            text = "\\n".join(rows)
            printed += len(text)
            sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\\n")
            sys.stdout.flush()
    files_left_out += skipped
if left_out:
    lines = "1 more line" if left_out == 1 else f"{{left_out}} more lines"
    files = "1 file" if files_left_out == 1 else f"{{files_left_out}} files"
    verb = "matches" if left_out == 1 else "match"
    print(f"[... {{lines}} in {{files}} {{verb}}: search for less, or in a folder or glob ...]")
""".lstrip()


@tool
async def search(
    sandbox: Sandbox,
    pattern: Annotated[
        str, Field(min_length=1, max_length=1000, description="A Python regular expression.")
    ],
    path: Annotated[str, Field(description="A file or directory, from the workspace root.")] = ".",
    glob: Annotated[
        str,
        Field(
            max_length=300,
            description="Only files that match, such as *.py or src/**/*.ts; ! in front excludes.",
        ),
    ] = "",
    context: Annotated[
        int, Field(ge=0, le=_MOST_CONTEXT, description="Lines to show around each match.")
    ] = 0,
) -> str:
    """Search files by a regular expression; gives each file's lines as `number:line`."""
    root = workspace_path(path)
    program = PythonCode(
        source=PROGRAM.encode(),
        filename="search.py",
        args=(pattern, str(root), glob.strip(), str(context), ",".join(sorted(QUIET_DIRECTORIES))),
        timeout_s=min(_TIMEOUT_S, sandbox.limits.wall_s),
    )
    result = await sandbox.run(program)
    found = result.stdout.rstrip()
    if result.exit_code == _REFUSED:
        raise ToolError(f"{pattern!r} cannot be searched for in {root}: {found}")
    if not result.succeeded:
        why = f"[... the search was ended early: {result.reason.value}; search for less ...]"
        return f"{found}\n{why}".strip()
    where = f"{root} ({glob.strip()})" if glob.strip() else str(root)
    return found or f"Nothing in {where} matches {pattern!r}."
