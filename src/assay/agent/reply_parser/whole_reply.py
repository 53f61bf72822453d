"""Find the one requested file in a reply that does not name it."""

import ast
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from assay.agent.edits.syntax import is_readable, parse_python, syntax_error
from assay.agent.reply_parser.addresses import fits_language
from assay.agent.reply_parser.fences import Fence

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
