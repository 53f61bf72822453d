"""The `--workspace` of `assay sandbox run`: copies the folder in and reports the changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.contracts.errors import UsageError
from assay.contracts.execution import ExecutionResult, Reason
from assay.contracts.jsonable import jsonable

if TYPE_CHECKING:
    from assay.contracts.ports import Sandbox
    from assay.runs.workspace_sync import Changes, Upload

_LETTERS: Final = {"added": "A", "modified": "M", "deleted": "D"}
_SHOWN: Final = 40
_LONGEST_LINE: Final = 8_000
_OF_ITS_OWN: Final = frozenset({Reason.COMPLETED, Reason.SIGNALLED})


def names_environment(text: str) -> bool:
    """Return whether a value of `--env` names the project's environment, not a variable."""
    return "=" not in text and (text in {"auto", "off"} or "/" in text or Path(text).is_dir())


def chosen_environment(values: Sequence[str]) -> str:
    """Return the project's environment that `--env` names last; `off` if it names none."""
    return next((text for text in reversed(values) if names_environment(text)), "off")


def check_options(options: Mapping[str, Any]) -> None:
    """Check that no other option needs `--workspace`.

    Raises:
        UsageError: If one does.
    """
    for option, name in (
        ("show_diff", "--diff"),
        ("apply_changes", "--apply"),
        ("artifacts", "--artifacts"),
        ("exclude", "--exclude"),
        ("include", "--include"),
    ):
        if options[option] and options["workspace"] is None:
            raise UsageError(f"{name} needs --workspace", hint="add --workspace DIR")
    if "auto" in options["env"] and options["workspace"] is None:
        raise UsageError("--env auto needs --workspace", hint="add --workspace DIR")


async def send(sandbox: "Sandbox", options: Mapping[str, Any], *, quiet: bool) -> "Upload":
    """Copy the folder into the sandbox, with a progress bar on a terminal."""
    from assay.cli.terminal import open_progress
    from assay.runs.environment import generated_files
    from assay.runs.workspace_sync import upload
    from assay.settings.load import load_settings

    env = chosen_environment(options["env"])
    generated = generated_files(env, options["workspace"])

    with open_progress(silent=quiet) as progress:
        return await upload(
            sandbox,
            options["workspace"],
            exclude=options["exclude"],
            include=(*options["include"], *map(str, generated)),
            secret_names=load_settings().workspace.secret_names,
            on_progress=progress.on_progress,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceReport:
    """The changes to the copy, and whether they were applied."""

    options: Mapping[str, Any]
    changes: "Changes"
    applied: bool = False
    ended_early: bool = False
    """The program was stopped, so `--apply` has no effect."""

    def fields(self) -> dict[str, Any]:
        """Return the report as JSON; undecodable bytes in names become lone surrogates."""
        kinds = {change.path: change.kind for change in self.changes.files}
        return {
            "changes": [{"path": str(path), "kind": kind} for path, kind in kinds.items()],
            "artifacts": jsonable(self.changes.artifacts),
            "left_out": jsonable(self.changes.left_out),
            "withheld": jsonable(self.changes.before.withheld),
            "applied": self.applied,
            **({"diff": self.changes.diff()} if self.options["show_diff"] else {}),
        }

    def show(self) -> None:
        """Print the report on stderr, so that stdout has only the program's output."""
        from assay.cli.render.text import one_line, visible

        for line in self._summary():
            click.echo(
                one_line(line, _LONGEST_LINE) if not line.startswith(" ") else visible(line),
                err=True,
            )
        if self.options["show_diff"]:
            _show_diff(self.changes.diff())

    def _summary(self) -> list[str]:
        from assay.text.diffs import quoted_name

        types = {one.path: one for one in self.changes.artifacts}
        where = repr(str(self.options["workspace"]))
        place = where if self.applied else f"the copy of {where}"
        count = len(self.changes.files)
        files = "1 file" if count == 1 else f"{count} files"
        unchanged = f"nothing was changed in the copy of {where}"
        lines = [f"{files} changed in {place}:" if count else unchanged]
        for change in self.changes.files[:_SHOWN]:
            one = types.get(change.path)
            about = f"  {one.media_type}, {_size(one.size_bytes)}" if one else ""
            lines.append(f"  {_LETTERS[change.kind]} {quoted_name(change.path)}{about}")
        if len(self.changes.files) > _SHOWN:
            lines.append(f"  and {len(self.changes.files) - _SHOWN} more")
        lines.extend(
            f"  - {quoted_name(one.path)}  stays in the sandbox: {one.why}"
            for one in self.changes.left_out[:_SHOWN]
        )
        if withheld := self.changes.before.withheld:
            from assay.cli.render.text import withheld_line

            lines.append(f"withheld: {withheld_line(withheld)}")
        if folder := self.options["artifacts"]:
            lines.append(f"saved {len(types)} files to {str(folder)!r}")
        if self.ended_early:
            lines.append("not applied: the program was stopped before it finished")
        elif self.changes.files and not self.options["apply_changes"]:
            lines.append("nothing was applied; --apply writes the changes into the folder")
        return lines


async def hand_back(
    sent: "Upload", options: Mapping[str, Any], result: ExecutionResult, *, quiet: bool
) -> WorkspaceReport:
    """Compare, save and apply the changes as requested.

    Raises:
        UsageError: If a file cannot be written; then none was.
    """
    from assay.cli.terminal import open_progress

    with open_progress(silent=quiet) as progress:
        changes = await sent.changes(on_progress=progress.on_progress)
    if options["artifacts"] is not None:
        await changes.save_artifacts(options["artifacts"])
    apply = options["apply_changes"]
    ended_early = apply and result.reason not in _OF_ITS_OWN
    applied = apply and not ended_early
    if applied:
        await changes.apply()
    return WorkspaceReport(
        options=options, changes=changes, applied=applied, ended_early=ended_early
    )


def _show_diff(diff: str) -> None:
    from rich.console import Console
    from rich.syntax import Syntax

    from assay.cli.render.highlighting import THEME
    from assay.cli.render.text import visible

    console = Console(stderr=True, highlight=False)
    text = visible(diff).rstrip("\n")
    if console.is_terminal and not console.no_color:
        console.print(Syntax(text, "diff", theme=THEME, background_color="default"))
    elif text:
        click.echo(text, err=True)


def _size(size_bytes: int) -> str:
    for unit, factor in (("MB", 1 << 20), ("kB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"
