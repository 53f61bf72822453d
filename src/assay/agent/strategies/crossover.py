"""Make an attempt without the model: combine functions of two attempts.

Two samples of a small model often fail different tests. If each has a function that the other got
wrong, the combination is right. Trying it costs a test run and no token.
"""

import ast
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from assay.agent.context import StepContext
from assay.agent.state import OBSERVATIONS, Attempt, NextAction
from assay.agent.steps.plan import case_of
from assay.contracts.jsonable import jsonable
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.runner import Observation
from assay.verify.verifier import judged_tree

_MOST: Final = 6
"""Combinations to try for one pair of attempts."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


async def recombine(sitting: StepContext, number: int, step: NextAction, *, tree: Tree) -> Attempt:
    """Try combinations of two attempts, and return the one that passes most tests."""
    journal, state = sitting.parts.journal, sitting.state
    other = state.attempt(step.other)
    best, most = tree, -1
    if other is not None:
        partner = await journal.load_tree(other.tree)
        mixed = islice(mixtures(tree, partner, state.plan.targets), _MOST)
        for place, mixture in enumerate(mixed, 1):
            passed = await _passed(sitting, mixture, f"mixed:{number}.{place}", number)
            if passed > most:
                best, most = mixture, passed
    digest = await journal.store_tree(best)
    return Attempt(number=number, move=step.move, tree=digest, base=step.base, other=step.other)


async def _passed(sitting: StepContext, tree: Tree, key: str, number: int) -> int:
    async def really() -> Mapping[str, Any]:
        pristine = await sitting.parts.journal.load_tree(sitting.state.plan.pristine)
        case = case_of(sitting, sitting.state.plan, pristine)
        judged, _ = judged_tree(case, tree)
        observations = await sitting.parts.verifier.run_checks(
            case, judged, on_output=sitting.on_output(number)
        )
        return {"observations": jsonable(observations)}

    kept = await sitting.once(key, really)
    observations: tuple[Observation, ...] = OBSERVATIONS.validate_python(kept["observations"])
    return sum(test.passed for seen in observations for test in seen.report.tests)


def mixtures(one: Tree, other: Tree, paths: tuple[PurePosixPath, ...]) -> Iterator[Tree]:
    """Yield the first tree with one function, or all but one, taken from the second."""
    for path in paths:
        mine, theirs = one.text(path), other.text(path)
        if path.suffix != ".py" or mine is None or theirs is None:
            continue
        for text in mixed_sources(mine, theirs):
            yield one.with_files({path: TreeFile(text.encode(), one.files[path].executable)})


def mixed_sources(mine: str, theirs: str) -> Iterator[str]:
    """Yield combinations of two modules that define some functions differently."""
    try:
        ours, others = functions_of(ast.parse(mine)), functions_of(ast.parse(theirs))
    except (SyntaxError, ValueError, RecursionError):
        return
    differing = [
        name for name in ours if name in others and ast.dump(ours[name]) != ast.dump(others[name])
    ]
    choices = [{name} for name in differing]
    if len(differing) > 2:  # noqa: PLR2004 - of two, all but one is one
        choices += [set(differing) - {name} for name in differing]
    for chosen in choices:
        if chosen != set(differing) or len(ours) > len(differing):
            yield _replaced(mine, theirs, {name: (ours[name], others[name]) for name in chosen})


def functions_of(module: ast.Module) -> dict[str, Function]:
    """Return the functions and methods of a module by name."""
    found: dict[str, Function] = {}
    for node in module.body:
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function):
                    found[f"{node.name}.{inner.name}"] = inner
    return found


def _replaced(mine: str, theirs: str, pairs: Mapping[str, tuple[Function, Function]]) -> str:
    lines, other_lines = mine.splitlines(), theirs.splitlines()
    # Last first, so that earlier line numbers stay valid.
    for old, new in sorted(pairs.values(), key=lambda pair: -pair[0].lineno):
        first, last = span_of(old)
        lines[first:last] = other_lines[slice(*span_of(new))]
    missing = [line for line in _imports(theirs) if line not in _imports(mine)]
    return "\n".join([*missing, *lines]) + "\n"


def span_of(node: Function) -> tuple[int, int]:
    """Return the line range of a function with its decorators, as slice bounds."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first - 1, node.end_lineno or node.lineno


def _imports(source: str) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
