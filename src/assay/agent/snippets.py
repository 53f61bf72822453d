"""Reusable functions of accepted files: found, extracted with what they need, and tested.

Only functions that need no other file are kept. They are tested before they are stored, and
again before a later run uses them.
"""

import ast
import difflib
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

import anyio
from pydantic import TypeAdapter

from assay.agent.context import StepContext
from assay.agent.state import Attempt, Plan, RunState
from assay.agent.target_files import is_python_with, module_file, module_word, names_wanted
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.jsonable import jsonable
from assay.contracts.lessons import RecallQuery, Snippet
from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.verify.spec import VerificationSpec

_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_IMPORTS = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Module:
    """The source of a module, and the names that each statement binds."""

    source: str
    tree: ast.Module

    @cached_property
    def binders(self) -> Mapping[str, tuple[ast.stmt, ...]]:
        """The top-level statements that bind each name."""
        found: dict[str, tuple[ast.stmt, ...]] = {}
        for statement in self.tree.body:
            for name in _bound_by(statement):
                found[name] = (*found.get(name, ()), statement)
        return found

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """The names of top-level test functions and classes."""
        return tuple(
            node.name
            for node in self.tree.body
            if isinstance(node, _DEFINITIONS) and node.name.lower().startswith("test")
        )

    def reach(self, names: Iterable[str]) -> frozenset[str]:
        """Return these names of the module, with all that they need directly or indirectly."""
        reached: set[str] = set()
        waiting = [name for name in names if name in self.binders]
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for statement in self.binders[name]:
                if not isinstance(statement, _IMPORTS):
                    waiting.extend(_names_in(statement) & self.binders.keys())
        return frozenset(reached)

    def taken_from(self, name: str, is_wanted: Callable[[str], bool]) -> frozenset[str]:
        """Return the names that a definition takes, however indirectly, from wanted modules."""
        reached = self.reach((name,))
        found: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = (alias for alias in node.names if _local_name(alias) in reached)
                found.update(alias.name for alias in names if is_wanted(node.module))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if _local_name(alias) in reached and is_wanted(alias.name):
                        found |= self._attributes(reached, alias.asname or alias.name)
        return frozenset(found)

    def _attributes(self, names: Iterable[str], owner: str) -> set[str]:
        statements = [one for name in names for one in self.binders.get(name, ())]
        return {
            node.attr
            for statement in statements
            for node in ast.walk(statement)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == owner
        }

    def cut(self, names: Iterable[str]) -> str:
        """Return a module with these names and their dependencies, in the original order."""
        needed = self.reach(names)
        imports: list[str] = []
        rest: list[str] = []
        for statement in self.tree.body:
            if isinstance(statement, _IMPORTS):
                imports.extend(_imported(statement, needed))
            elif needed & set(_bound_by(statement)):
                rest.append(self._text(statement))
        head = "\n".join(imports)
        return "\n\n\n".join(part for part in (head, *rest) if part) + "\n"

    def _text(self, statement: ast.stmt) -> str:
        decorators = statement.decorator_list if isinstance(statement, _DEFINITIONS) else []
        if not decorators:
            return ast.get_source_segment(self.source, statement) or ast.unparse(statement)
        lines = self.source.splitlines()
        first = min(decorator.lineno for decorator in decorators)
        return "\n".join(lines[first - 1 : statement.end_lineno])


def read_module(source: str) -> Module | None:
    """Parse a module; None if it is not Python or has a star import."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    module = Module(source, tree)
    starred = any(alias.name == "*" for node in _imports_in(tree) for alias in node.names)
    return None if starred else module


def imports_of(source: str) -> frozenset[str]:
    """Return the dotted names of all imports of a module; `.` for a relative import."""
    found: set[str] = set()
    for node in _imports_in(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            found.add("." if node.level or not node.module else node.module)
    return frozenset(found)


def definition_of(source: str, name: str) -> str:
    """Return one definition without comments and layout; empty if there is none."""
    module = read_module(source)
    for statement in module.binders.get(name, ()) if module else ():
        if isinstance(statement, _DEFINITIONS):
            return ast.unparse(statement)
    return ""


def _imports_in(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, _IMPORTS))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, _IMPORTS):
        for alias in statement.names:
            yield _local_name(alias)
    elif not isinstance(statement, ast.Expr):
        # This includes names that nested statements bind: `try: import x`, `for`, `with`.
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.alias):
                yield _local_name(node)


def _local_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _names_in(statement: ast.stmt) -> set[str]:
    # This is a superset: a local variable of the same name counts too.
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} | {
        argument.arg for node in ast.walk(statement) for argument in _arguments(node)
    }


def _arguments(node: ast.AST) -> Sequence[ast.arg]:
    # A test requests a fixture by a parameter's name.
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    return (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)


def _imported(statement: ast.Import | ast.ImportFrom, needed: frozenset[str]) -> Iterator[str]:
    future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    kept = [alias for alias in statement.names if future or _local_name(alias) in needed]
    if not kept:
        return
    if isinstance(statement, ast.Import):
        yield ast.unparse(ast.Import(names=kept))
    else:
        yield ast.unparse(
            ast.ImportFrom(module=statement.module, names=kept, level=statement.level)
        )


_ANYWHERE: Final = sys.stdlib_module_names | {"matplotlib", "numpy", "pandas", "scipy", "sklearn"}
"""Packages that every sandbox has."""
_FOR_TESTS: Final = frozenset({"pytest"})
_MAX_CHARS: Final = 4_000
"""The maximum for the code: more is a program, not a snippet."""


@dataclass(frozen=True, slots=True)
class _File:
    path: PurePosixPath
    module: Module


def snippets_in(before: Tree, after: Tree, tests: tuple[PurePosixPath, ...]) -> Iterator[Snippet]:
    """Yield the snippets of changed Python files, each with its own tests.

    Names that are tested together stay together. Code is excluded if it or its test needs another
    project file, or a library that sandboxes do not have.
    """
    changed = [one.path for one in changes_between(before, after) if one.kind != "deleted"]
    own = frozenset(tests)
    for file in _python_files((path for path in changed if path not in own), after):
        word = module_word(file.path)
        # Of thousands of tests, only those that may import the file are parsed.
        using = (path for path in tests if is_python_with(word, after.files.get(path), path))
        for test in _python_files(using, after):
            yield from _snippets_of(file, test, after)


def _python_files(paths: Iterator[PurePosixPath], tree: Tree) -> Iterator[_File]:
    for path in paths:
        text = tree.text(path) if path.suffix == ".py" else None
        module = None if text is None else read_module(text)
        if module is not None:
            yield _File(path, module)


def _snippets_of(file: _File, test: _File, tree: Tree) -> Iterator[Snippet]:
    def is_ours(dotted: str) -> bool:
        return module_file(dotted, test.path, tree) == file.path

    uses = {name: test.module.taken_from(name, is_ours) for name in test.module.tests}
    for group in _joined(list(uses.values())):
        own = [name for name, used in uses.items() if used and used <= group]
        source, check = file.module.cut(group), test.module.cut(own)
        needed = {dotted for dotted in imports_of(check) if not is_ours(dotted)}
        if (
            group <= file.module.binders.keys()
            and len(source) <= _MAX_CHARS
            and _tops(imports_of(source)) <= _ANYWHERE
            and _tops(needed) <= _ANYWHERE | _FOR_TESTS
        ):
            names = tuple(name for name in file.module.binders if name in group)
            yield Snippet(
                names=names,
                purpose="",
                path=file.path,
                source=source,
                test_path=test.path,
                test=check,
            )


def _joined(sets: list[frozenset[str]]) -> list[frozenset[str]]:
    """Merge sets that overlap until all are disjoint."""
    groups: list[frozenset[str]] = []
    for one in filter(None, sets):
        touching = [group for group in groups if group & one]
        groups = [group for group in groups if not group & one]
        groups.append(one.union(*touching))
    return groups


def _tops(dotted: frozenset[str] | set[str]) -> set[str]:
    return {name.partition(".")[0] or "." for name in dotted}


_MOST_KEPT: Final = 2
"""Snippets per run: the user waits while fresh sandboxes verify each one."""
_TEST_S: Final = 60.0
_MOST_S: Final = 90.0
"""For all snippet tests of one step; a quarter of the remaining time, if that is less."""
_ALIKE: Final = 0.8
_SNIPPETS: Final = TypeAdapter(tuple[Snippet, ...])


async def proven_snippets(context: StepContext, plan: Plan) -> tuple[Snippet, ...]:
    """Recall snippets that may serve the goal, and return those whose tests pass again."""
    deps = context.deps
    tree = await deps.journal.load_tree(plan.pristine)
    paths = dict.fromkeys((*plan.targets, *plan.related))
    wanted = [name for path in paths for name in names_wanted(plan.protected, path, tree)]
    cue = RecallQuery(moment="plan", goal=deps.spec.goal, text=" ".join(wanted))

    async def really() -> Mapping[str, Any]:
        held: list[Snippet] = []
        offered = await deps.memory.offer(cue)
        present = _present_in(tree, {name for snippet in offered for name in snippet.names})
        for snippet in offered:
            if _is_there(snippet, present) or _is_screened_out(context, snippet):
                continue
            holds = await _holds(context, snippet)
            await deps.memory.tested(snippet.id, passed=holds)
            if holds:
                held.append(snippet)
        return {"snippets": jsonable(tuple(held))}

    with _limited(context):
        kept = await context.once("snippets", really)
        return _SNIPPETS.validate_python(kept["snippets"])
    return ()


async def keep_snippets(context: StepContext, accepted: Attempt) -> None:
    """Extract snippets from accepted files, and store those whose tests hold."""
    deps, verdict = context.deps, accepted.verdict
    if verdict is None or verdict.grade is None or verdict.findings:
        return
    if verdict.grade.rank < Grade.CHECKED.rank:
        return
    tree = await deps.journal.load_tree(verdict.tree or accepted.tree)
    found = snippets_in(deps.pristine, tree, context.state.plan.protected)
    about = {"purpose": deps.spec.goal, "run": deps.run, "grade": verdict.grade.value}
    # The files are accepted by now, so a timeout or a missing sandbox must not undo that.
    with _limited(context), suppress(SandboxUnavailableError):
        for snippet in islice(found, _MOST_KEPT):
            whole = replace(snippet, **about)
            if not _is_screened_out(context, whole) and await _holds(context, whole):
                await deps.memory.keep(whole)


async def judge_snippets(context: StepContext, state: RunState, accepted: Attempt | None) -> None:
    """Record for offered snippets whether the accepted attempt uses them, or only others do.

    A snippet that no attempt uses gets no record.
    """
    deps = context.deps
    for snippet in state.plan.snippets:
        if accepted is not None and await _uses(context, accepted, snippet):
            await deps.memory.judge((snippet.id,), helped=True)
            continue
        for attempt in state.attempts:
            if attempt.reports and await _uses(context, attempt, snippet):
                await deps.memory.judge((snippet.id,), helped=False)
                break


def _limited(context: StepContext) -> anyio.CancelScope:
    """Return a scope that leaves most of the remaining time to the run."""
    left_s = max(0.0, context.deps.spec.limits.wall_s - context.wall_s)
    return anyio.move_on_after(min(_MOST_S, left_s / 4))


def _present_in(tree: Tree, names: set[str]) -> Mapping[str, set[str]]:
    """Return the definitions that a tree has for each of these names."""
    present: dict[str, set[str]] = {name: set() for name in names}
    if not names:
        return present
    joined = "|".join(map(re.escape, sorted(names)))
    begins = re.compile(rf"^(?:async +def|def|class) +({joined})\b".encode(), re.MULTILINE)
    for path, file in tree.files.items():
        if path.suffix != ".py":
            continue
        content = file.content
        for name in {found[1].decode() for found in begins.finditer(content)}:
            present[name].add(definition_of(content.decode(errors="replace"), name))
    return present


def _is_there(snippet: Snippet, present: Mapping[str, set[str]]) -> bool:
    """Whether the workspace already has the snippet, where the model sees it."""
    definitions = ((name, definition_of(snippet.source, name)) for name in snippet.names)
    return any(text and text in present[name] for name, text in definitions)


def _is_screened_out(context: StepContext, snippet: Snippet) -> bool:
    deps = context.deps
    return deps.screening != "off" and bool(deps.screen(snippet.path, snippet.source.encode()))


async def _holds(context: StepContext, snippet: Snippet) -> bool:
    """Run the test of a snippet without it and with it, in otherwise empty sandboxes."""
    test = Tree(files={snippet.test_path: TreeFile(snippet.test.encode())})
    whole = test.with_files({snippet.path: TreeFile(snippet.source.encode())})
    case = VerificationSpec(
        pristine=test,
        checks=(f"pytest {shlex.quote(str(snippet.test_path))}",),
        protected=(snippet.test_path,),
        check_timeout_s=_TEST_S,
    )
    verifier = context.deps.verifier
    without = await verifier.run_checks(case, test)
    if all(seen.report.passed for seen in without):
        return False
    verdict = await verifier.verify(case, whole)
    return verdict.accepted and not verdict.findings


async def _uses(context: StepContext, attempt: Attempt, snippet: Snippet) -> bool:
    """Whether an attempt contains the code of a snippet, unchanged or slightly changed."""
    tree = await context.deps.journal.load_tree(attempt.tree)
    changed = changes_between(context.deps.pristine, tree)
    texts = [tree.text(one.path) or "" for one in changed if one.path.suffix == ".py"]
    for name in snippet.names:
        ours = definition_of(snippet.source, name)
        for text in texts:
            theirs = definition_of(text, name) if ours and name in text else ""
            if theirs and difflib.SequenceMatcher(None, ours, theirs).ratio() >= _ALIKE:
                return True
    return False
