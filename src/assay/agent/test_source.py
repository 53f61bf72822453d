"""Return the source of single tests, to show it to the model."""

import ast
from pathlib import PurePosixPath

from assay.contracts.workspace import Tree


def source_of(test_id: str, tree: Tree) -> str:
    """Return the function behind a pytest ID; empty if it cannot be found."""
    file, _, name = test_id.partition("[")[0].partition("::")
    text = tree.text(PurePosixPath(file))
    if text is None or not name:
        return ""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    wanted = name.rpartition("::")[2]
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""
