"""Tools of a run that know its plan: the deciding check, the change so far, and images.

They are offered together with the tools of the sandbox.
"""

import shlex
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, cast

from assay.agent.context import StepContext
from assay.agent.edits.apply import tidy_path, why_unusable
from assay.agent.feedback import describe_reports
from assay.contracts.errors import ToolError, WorkspaceError
from assay.contracts.messages import Picture, ToolSpec
from assay.contracts.ports import OnOutput, Sandbox, Tool, ignore_output
from assay.contracts.verdict import CheckReport
from assay.contracts.workspace import Tree
from assay.text.diffs import unified_diff
from assay.text.formatting import cut_middle
from assay.verify.parse_command import read_invocation, split_command
from assay.verify.verifier import judged_tree

CHECK: Final = "check"
GIT_DIFF: Final = "git_diff"
VIEW_IMAGE: Final = "view_image"
_REPORT_CHARS: Final = 12_000
_DIFF_CHARS: Final = 24_000
_LARGEST_IMAGE: Final = 4 << 20
_MOST_TESTS: Final = 50
_MOST_NAMES: Final = 20
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
_FLAGS_ALONE: Final = frozenset(
    ["-q", "-qq", "-v", "-vv", "-x", "-s", "-l", "--lf", "--ff", "--pdb"]
)
_PATH: Final = {"type": "string", "description": "Path from the workspace root."}


class Workspace(Protocol):
    """The files of an attempt, and the images to send with the next answers."""

    tree: Tree
    pictures: tuple[Picture, ...]


def run_tools(context: StepContext, number: int, files: Workspace) -> tuple[Tool, ...]:
    """Return the tools of one attempt."""
    tools: list[Tool] = [
        _CheckTool(context=context, number=number, files=files),
        _DiffTool(context=context, files=files),
    ]
    info = context.deps.model.info
    if info.sees_pictures and info.tool_calls:
        tools.append(_ImageTool(files=files))
    return tuple(tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckTool:
    """Runs the deciding checks as the verifier does, in a fresh sandbox, without canaries."""

    context: StepContext
    number: int
    files: Workspace

    @property
    def spec(self) -> ToolSpec:
        tests = {
            "type": "array",
            "items": {"type": "string"},
            "description": "IDs or parts of IDs of tests; leave out to run the whole check.",
        }
        about = "Run the command that decides, exactly as the independent check runs it."
        return _spec(CHECK, about, {"tests": tests})

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        del sandbox  # a fresh one has only the files that count
        names = _names_in(arguments.get("tests") or [])
        deps, plan = self.context.deps, self.context.state.plan
        spec = self.context.verification_spec(plan, await deps.journal.load_tree(plan.pristine))
        tree, left_out = judged_tree(spec, self.files.tree)
        commands = tuple(narrowed(command, names, tree) for command in spec.checks)
        seen = await deps.verifier.run_checks(
            replace(spec, checks=commands), tree, on_output=on_output
        )
        seen = await self.context.leave_out_known_failures(spec, tree, seen)
        reports = tuple(observation.report for observation in seen)
        notes = [f"Not counted: {finding.explanation}" for finding in left_out[:_MOST_NAMES]]
        if names:
            reports = _only(reports, names)
        text = describe_reports(reports, before=None, max_chars=_REPORT_CHARS)
        return "\n".join((text, *notes))


def _names_in(given: object) -> tuple[str, ...]:
    names = cast("list[object]", given) if isinstance(given, list) else [given]
    if not all(isinstance(name, str) for name in names):
        raise ToolError("check takes `tests`, a list of test IDs")
    return tuple(str(name) for name in names if name)[:_MOST_TESTS]


def narrowed(command: str, names: tuple[str, ...], tree: Tree) -> str:
    """Return a pytest command that runs only these tests; other commands stay whole.

    Only IDs with an existing file narrow a command: a part of a name selects from the report.
    """
    argv = split_command(command, tree)
    call = read_invocation(argv)
    known = all(
        "::" in name and PurePosixPath(name.partition("::")[0]) in tree.files for name in names
    )
    if call.program != "pytest" or call.cwd != PurePosixPath() or not names or not known:
        return command
    folders = {parent for path in tree.files for parent in path.parents}
    first = len(argv) - len(call.arguments)
    kept = list(argv[:first])
    for before, word in zip(argv[first - 1 :], argv[first:], strict=False):
        path = PurePosixPath(word.partition("::")[0])
        value = before.startswith("-") and "=" not in before and before not in _FLAGS_ALONE
        if value or not (path in tree.files or path in folders):
            kept.append(word)
    return shlex.join([*kept, *names])


def _only(reports: tuple[CheckReport, ...], names: tuple[str, ...]) -> tuple[CheckReport, ...]:
    """Return the reports with only the named tests; a report without tests stays as it is."""
    chosen: list[CheckReport] = []
    for report in reports:
        tests = tuple(test for test in report.tests if any(name in test.id for name in names))
        chosen.append(replace(report, tests=tests) if tests else report)
    found = any(test for report in chosen for test in report.tests if _is_named(test.id, names))
    if any(report.tests for report in reports) and not found:
        ids = [test.id for report in reports for test in report.tests][:_MOST_NAMES]
        raise ToolError(f"no test is named {', '.join(names)}; there are: {', '.join(ids)}")
    return tuple(chosen)


def _is_named(test: str, names: tuple[str, ...]) -> bool:
    return any(name in test for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DiffTool:
    """Shows the change so far, compared with the untouched files."""

    context: StepContext
    files: Workspace

    @property
    def spec(self) -> ToolSpec:
        about = "Show all changes so far as a unified diff against the untouched files."
        return _spec(GIT_DIFF, about, {"path": _PATH})

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        del sandbox, on_output
        before = await self.context.deps.journal.load_tree(self.context.state.plan.pristine)
        after, path = self.files.tree, str(arguments.get("path") or "")
        if path:
            root = _usable(path)
            before, after = _below(before, root), _below(after, root)
        changes = unified_diff(before, after)
        return cut_middle(changes, max_chars=_DIFF_CHARS) or "Nothing was changed."


def _below(tree: Tree, root: PurePosixPath) -> Tree:
    others = [path for path in tree.files if path != root and root not in path.parents]
    return tree.without(others)


def _usable(path: str) -> PurePosixPath:
    tidy = tidy_path(path)
    if tidy != PurePosixPath() and (reason := why_unusable(tidy)):
        raise ToolError(f"{path[:200]!r}: {reason}")
    return tidy


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageTool:
    """Shows an image of the workspace to a model that sees images."""

    files: Workspace

    @property
    def spec(self) -> ToolSpec:
        return _spec(VIEW_IMAGE, "See an image file: PNG, JPEG, GIF.", {"path": _PATH}, "path")

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        del on_output
        path = _usable(str(arguments.get("path") or ""))
        try:
            content = await sandbox.read_file(path, max_bytes=_LARGEST_IMAGE)
        except WorkspaceError as error:
            raise ToolError(str(error)) from error
        kind = next((kind for magic, kind in _IMAGES.items() if content.startswith(magic)), "")
        if not kind:
            raise ToolError(f"{path} is not a PNG, JPEG or GIF image")
        picture = Picture(media_type=kind, base64=b64encode(content).decode())
        self.files.pictures = (*self.files.pictures, picture)
        return f"{path} ({len(content)} bytes) follows these answers."


def _spec(name: str, about: str, properties: Mapping[str, Any], *required: str) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description=about, parameters=schema)
