"""Parse a reply into edits, tool calls, or the statement that the work is finished.

A reply that does not name the one requested file is searched for the block that fits best.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, cast

from assay.agent.edits.apply import (
    DeleteFile,
    Edit,
    ReplaceText,
    WriteFile,
    is_readable,
    parse_python,
    syntax_error,
    tidy_path,
    why_unusable,
)
from assay.agent.reply_parser.blocks import (
    Fence,
    fits_language,
    is_diff,
    language_of,
    read_diff,
)
from assay.agent.reply_parser.plain_text import (
    CUT_OFF,
    TOOL_OF,
    Action,
    Blocked,
    Finish,
    ParsedReply,
    Patch,
    Reading,
)
from assay.contracts.messages import ToolCall, ToolSpec

_CODE_BEGINS = re.compile(r"^(?:import |from \S+ import |def |class |async def |@|#!|\"\"\"|''')")
_MOST_TRIES = 30


def choose_block(fences: Sequence[Fence], target: PurePosixPath) -> Fence | None:
    """Return the block that is most likely the complete file; None if none can be it."""
    fitting = [
        fence for fence in fences if fits_language(fence.info, target) and fence.text.strip()
    ]
    return max(fitting, key=lambda fence: _worth(fence, target), default=None)


def text_without_fences(text: str, target: PurePosixPath) -> str | None:
    """Return the file in a reply without fences; None if the reply is not that file."""
    if not is_readable(target):
        return None
    if _is_file(text, target):
        return text.strip("\n") + "\n"
    return _code_among_prose(text.split("\n"), target) if target.suffix == ".py" else None


def _worth(fence: Fence, target: PurePosixPath) -> tuple[bool, bool, int, int]:
    parses = is_readable(target) and not syntax_error(target, fence.text)
    tree = parse_python(fence.text) if target.suffix == ".py" else None
    if tree is None:
        return parses, True, 0, len(fence.text)
    return parses, not _uses(tree, target.stem), _definitions(tree), len(fence.text)


def _uses(tree: ast.Module, module: str) -> bool:
    """Whether a block imports the requested file: it is then an example or a test."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.partition(".")[0] == module for name in names):
            return True
    return False


def _definitions(tree: ast.Module) -> int:
    """Count the definitions in a block, without its tests."""
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return sum(
        not node.name.lower().startswith("test")
        if isinstance(node, named)
        else isinstance(node, ast.Assign | ast.AnnAssign)
        for node in tree.body
    )


def _is_file(text: str, target: PurePosixPath) -> bool:
    if syntax_error(target, text.strip("\n") + "\n"):
        return False
    if target.suffix in {".py", ".pyi"}:
        tree = parse_python(text)
        # A single word of text also parses, as an expression.
        return tree is not None and any(not isinstance(node, ast.Expr) for node in tree.body)
    return text.strip()[:1] in {"{", "["} if target.suffix == ".json" else "=" in text


def _code_among_prose(lines: list[str], target: PurePosixPath) -> str | None:
    """Return the code of a reply with text before and after it."""
    first = next((at for at, line in enumerate(lines) if _CODE_BEGINS.match(line)), None)
    if first is None:
        return None
    ends = [at for at in range(len(lines), first, -1) if at == len(lines) or not lines[at].strip()]
    for end in ends[:_MOST_TRIES]:
        text = "\n".join(lines[first:end])
        if _is_file(text, target):
            return text.strip("\n") + "\n"
    return None


__all__ = [
    "Action",
    "Blocked",
    "Finish",
    "ParsedReply",
    "Patch",
    "describe_protocol",
    "edit_specs",
    "steps_in",
    "understand_calls",
    "understand_text",
]

_THOUGHTS = re.compile(r"^\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
_END_OF_THOUGHTS = re.compile(r"^(?:(?!```).)*?</think(?:ing)?>", re.DOTALL)
_TAGGED_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ONLY_JSON = re.compile(r"^```(?:json|tool_call)?\s*(\{.*\})\s*```$", re.DOTALL)
_MOST_CHARS = 2_000_000
_STEP = re.compile(r"^\s*(?:\d+[.)]|[-*])\s+(.+)$", re.MULTILINE)
_MOST_STEPS = 6

_PATCH = (
    "A unified diff (line numbers are ignored), or blocks: `EDIT: path` with SEARCH/REPLACE hunks,"
    " `FILE: path` with a fenced file, `DELETE: path`."
)
_PATH = {"type": "string", "description": "Path from the workspace root."}


def understand_text(
    text: str,
    *,
    sole_target: PurePosixPath | None = None,
    tools: frozenset[str],
    ended: bool = False,
) -> ParsedReply:
    """Parse a plain-text reply.

    Args:
        text: The reply, including its prefill.
        sole_target: The only requested file; a block without a path is this file.
        tools: Names of the available tools.
        ended: Whether the model stopped by itself, maybe at the closing fence as its stop word. An
            open fence then does not mean that the reply was cut off.
    """
    words = _without_thoughts(text[:_MOST_CHARS].replace("\r\n", "\n").removeprefix("\ufeff"))
    calls = _calls_in_json(words, tools)
    if calls:
        understood = understand_calls(calls, tools=tools)
        return ParsedReply(asks=understood.asks, problems=understood.problems)
    lines = words.removesuffix("\n").split("\n")
    reading = Reading(lines=lines, tools=tools, sole_target=sole_target, ended=ended)
    reading.read()
    _use_bare_blocks(reading)
    prose = "\n".join(reading.prose).strip()
    if not reading.asks and not reading.problems and sole_target is not None:
        whole = text_without_fences(words, sole_target)
        if whole is not None:
            return ParsedReply(asks=(WriteFile(path=sole_target, text=whole),))
    return ParsedReply(
        asks=tuple(reading.asks), problems=tuple(dict.fromkeys(reading.problems)), prose=prose
    )


def steps_in(text: str) -> tuple[str, ...]:
    """Return the steps of the plan in a reply; none if it has no list."""
    return tuple(_STEP.findall(_without_thoughts(text))[:_MOST_STEPS])


def _without_thoughts(text: str) -> str:
    stripped = _THOUGHTS.sub("", text, count=1)
    return stripped if stripped != text else _END_OF_THOUGHTS.sub("", text, count=1)


def _calls_in_json(text: str, tools: frozenset[str]) -> tuple[ToolCall, ...]:
    """Return the calls that a model wrote as text, in tags or as the complete reply."""
    tagged: list[str] = _TAGGED_CALL.findall(text)
    if tagged:
        return tuple(_call_from_json(each, f"text-{at}") for at, each in enumerate(tagged, start=1))
    call = _call_from_json(_ONLY_JSON.sub(r"\1", text.strip()), "text-1")
    known = call.name in tools or any(spec.name == call.name for spec in edit_specs())
    return (call,) if known and call.arguments is not None else ()


def _call_from_json(written: str, call: str) -> ToolCall:
    try:
        value: object = json.loads(written)
    except (ValueError, RecursionError):
        value = None
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    arguments = fields.get("arguments", fields.get("parameters"))
    return ToolCall(
        id=call,
        name=str(fields.get("name", "")),
        arguments=cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None,
        written=written.strip(),
    )


def _use_bare_blocks(reading: Reading) -> None:
    """Find the purpose of blocks without a path, if the reply has no other edit."""
    edits = any(not isinstance(ask, ToolCall | Finish | Blocked) for ask in reading.asks)
    if not reading.bare or edits:
        return
    calls = any(isinstance(ask, ToolCall) for ask in reading.asks)
    target = reading.sole_target
    chosen = choose_block(reading.bare, target) if target else None
    if target is not None and chosen is not None:
        if not chosen.closed and not reading.ended:
            reading.problems.append(f"{CUT_OFF} inside {target}: the file is not complete")
        reading.asks.insert(0, WriteFile(path=target, text=chosen.text))
    elif not calls and "run" in reading.tools and _is_one_command(reading.bare):
        command = reading.bare[0].text.strip().removeprefix("$ ")
        reading.asks.insert(0, ToolCall(id="text-0", name="run", arguments={"command": command}))
    elif not calls and not reading.problems:
        reading.problems.append(
            "there is a code block, but nothing says what it is for: write FILE: and the path on"
            " the line above it"
        )


def _is_one_command(fences: Sequence[Fence]) -> bool:
    return len(fences) == 1 and language_of(fences[0].info) == "sh" and fences[0].closed


def understand_calls(calls: tuple[ToolCall, ...], *, tools: frozenset[str]) -> ParsedReply:
    """Parse native tool calls. An invalid call does not affect the others."""
    asks: list[tuple[Action, str]] = []
    problems: list[tuple[str, str]] = []
    for call in calls:
        ask = _understand_call(call, tools)
        if isinstance(ask, str):
            problems.append((ask, call.id))
        else:
            asks.append((ask, call.id))
    return ParsedReply(
        asks=tuple(ask for ask, _ in asks),
        problems=tuple(problem for problem, _ in problems),
        call_ids=tuple(call for _, call in asks),
        problem_ids=tuple(call for _, call in problems),
    )


def _understand_call(call: ToolCall, tools: frozenset[str]) -> Action | str:
    """Return the requested action, or a description of the error."""
    specs = {spec.name: spec for spec in edit_specs()}
    if call.name not in specs and call.name not in tools:
        return f"there is no tool {call.name!r}; there are {', '.join([*specs, *sorted(tools)])}"
    if call.arguments is None:
        written = f": {call.written[:200]!r}" if call.written.strip() else ""
        return f"the arguments of {call.name} are not a JSON object{written}"
    if call.name not in specs:
        return call
    arguments = call.arguments
    needed = cast("list[str]", specs[call.name].parameters["required"])
    wrong = [name for name in needed if not isinstance(arguments.get(name), str)]
    if wrong:
        return f"{call.name} needs {', '.join(wrong)} as text; it takes {', '.join(needed)}"
    return _build_edit(call.name, arguments)


def _build_edit(name: str, arguments: Mapping[str, Any]) -> Action | str:
    if name == "done":
        return Finish()
    if name == "apply_patch":
        return _read_patch(arguments["patch"])
    if name == "blocked":
        reason = " ".join(arguments["reason"].split())
        return Blocked(reason) if reason else "blocked needs a reason: say what you need"
    path = tidy_path(arguments["path"])
    reason = why_unusable(path)
    if reason:
        return f"{name} {arguments['path'][:200]!r}: {reason}"
    if name == "write_file":
        return WriteFile(path=path, text=arguments["text"])
    if name == "edit_file":
        return ReplaceText(path=path, search=arguments["search"], replace=arguments["replace"])
    return DeleteFile(path=path)


def _read_patch(text: str) -> Patch | str:
    """Return the edits of a unified diff or of blocks in the plain-text protocol."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not is_diff(lines):
        understood = understand_text(text, tools=frozenset(), ended=True)
        edits = tuple(ask for ask in understood.asks if isinstance(ask, Edit))
        problems = understood.problems
    else:
        read = read_diff(lines)
        problems = read.problems
        if any(hunk.path is None for hunk in read.hunks):
            problems = (*problems, "a hunk names no file; delete files with `delete_file`")
        edits = tuple(
            ReplaceText(path=hunk.path, search=hunk.search, replace=hunk.replace)
            for hunk in read.hunks
            if hunk.path is not None
        )
    if problems or not edits:
        return f"apply_patch changed nothing: {'; '.join(problems) or 'there is no edit in it'}"
    return Patch(edits)


def edit_specs() -> tuple[ToolSpec, ...]:
    """Return the edits as tool specs, for models with native tool calls."""
    return (
        _spec(
            "write_file",
            "Write a whole file, new or in place of what is there. Never leave code out.",
            {"path": _PATH, "text": {"type": "string", "description": "All of the file."}},
        ),
        _spec(
            "edit_file",
            "Replace lines of a file. The search text must be in the file exactly once.",
            {
                "path": _PATH,
                "search": {"type": "string", "description": "Whole lines as they are in the file."},
                "replace": {"type": "string", "description": "What comes in their place."},
            },
        ),
        _spec("delete_file", "Delete a file.", {"path": _PATH}),
        _spec(
            "apply_patch",
            "Change several files together; if one part does not fit, nothing is changed.",
            {"patch": {"type": "string", "description": _PATCH}},
        ),
        _spec("done", "Say that the work is finished. It is then checked independently.", {}),
        _spec(
            "blocked",
            "End the run because the goal cannot be reached here, and say what you need.",
            {"reason": {"type": "string", "description": "What is missing, for the user."}},
        ),
    )


def _spec(name: str, description: str, properties: Mapping[str, Any]) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description=description, parameters=schema)


_EDIT_FORMS = """\
Write a whole file, new or not:
FILE: path/to/file.py
```python
all of the file
```
Change lines of a file; the SEARCH lines are copied exactly, and stand in the file only once:
EDIT: path/to/file.py
```
<<<<<<< SEARCH
old lines
=======
new lines
>>>>>>> REPLACE
```
Delete a file:
DELETE: path/to/file.py"""

_TOOL_FORMS = {
    "run": "Run a shell command in the workspace:\nRUN: command",
    "python": "Run Python code:\nPYTHON:\n```python\ncode\n```",
    "read_file": "Read a file, or lines of it:\nREAD: path/to/file.py 10-40",
    "list_files": "List files:\nLIST: path",
    "search": "Search files by a regular expression:\nSEARCH: pattern in path",
    "check": "Run what decides, whole or for some tests:\nCHECK:",
    "git_diff": "See all changes so far:\nDIFF:",
}

_DONE_FORM = "When the work is finished:\nDONE"
_BLOCKED_FORM = "If the goal cannot be reached here, end the run:\nBLOCKED: what you need"


def describe_protocol(tools: tuple[ToolSpec, ...]) -> str:
    """Return the prompt section that explains the protocol to models without native tool calls."""
    offered = {spec.name for spec in tools}
    forms = [_TOOL_FORMS[name] for name in TOOL_OF.values() if name in offered]
    head = "Ask for things in exactly these forms. Never leave code out with `...`."
    ends = [_DONE_FORM, _BLOCKED_FORM] if tools else [_DONE_FORM]
    return "\n\n".join([head, _EDIT_FORMS, *forms, *ends])
