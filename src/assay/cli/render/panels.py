"""The parts of the live view of a run, and how each shrinks to fewer lines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from assay.cli.render.event_text import MOVES, clock, compact, cost, count
from assay.cli.render.highlighting import Excerpt, excerpt_of_diff, excerpt_of_reply
from assay.cli.render.symbols import TerminalStyle, unwrapped
from assay.cli.render.test_matrix import LatticePicture
from assay.cli.render.text import last_lines, one_line
from assay.cli.render.view_model import AttemptView, RunState
from assay.contracts.messages import Usage

_CODE_ROWS: Final = 15
_OUTPUT_ROWS: Final = 10
_LATTICE_ROWS: Final = 14
_PLAN_ROWS: Final = 9
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_SPINNER: Final = "|/-\\"
_TURNS_PER_S: Final = 8
_WIDE: Final = 70
_BAR: Final = 18
_CALM: Final = 0.6
_NEAR: Final = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One part of the live view."""

    title: str
    wanted: int
    """Number of lines it would fill."""
    draw: Callable[[int], RenderableType]
    """Draws the panel within that many lines."""


def head(state: RunState, look: TerminalStyle, seconds: float) -> list[Text]:
    """Return the activity, the goal, the model, the backend and the workspace."""
    attempt, desk = state.focus
    frames = _PLAIN_SPINNER if look.ascii_only else _SPINNER
    line = unwrapped()
    line.append(f"{frames[int(seconds * _TURNS_PER_S) % len(frames)]} ", "cyan")
    line.append("accepted" if state.accepted else desk.doing, "bold")
    most = state.started.goal.effort.attempts if state.started else 0
    if attempt:
        of = f" of {most}" if most else ""
        move = f", {MOVES[desk.move]}" if desk.move else ""
        line.append(f"  attempt {attempt}{of}{move}", "cyan")
    if len(state.desks) > 1:
        line.append(f"  {len(state.desks)} side by side", "dim")
    lines = [line]
    if state.started:
        started = state.started
        lines.append(unwrapped(one_line(started.goal.statement, 400)))
        facts = (started.model, f"{started.backend}, {started.isolation}", started.workspace)
        lines.append(unwrapped("  ".join(one_line(fact, 80) for fact in facts), "dim"))
    return lines


def foot(usage: Usage, share: float, seconds: float, width: int) -> Table:
    """Return the used share of the budget, the cost and the time."""
    share = min(max(share, 0.0), 1.0)
    style = "green" if share < _CALM else "yellow" if share < _NEAR else "red"
    told = [f"{share:.0%} of budget", cost(usage), clock(seconds)]
    if width >= _WIDE:
        told[2:2] = [
            count(usage.calls, "call"),
            f"{compact(usage.input_tokens)} tokens read, {compact(usage.output_tokens)} written",
        ]
    bar = ProgressBar(
        total=1.0,
        completed=share,
        width=_BAR if width >= _WIDE else max(width // 5, 4),
        complete_style=style,
        finished_style=style,
    )
    table = Table.grid(padding=(0, 1))
    table.add_row(bar, unwrapped("  ".join(told)))
    return table


def working_panes(state: RunState, look: TerminalStyle) -> list[Panel]:
    """Return the panels that change often: code and output of programs."""
    _, desk = state.focus
    panes: list[Panel] = []
    excerpt = _excerpt(desk)
    if excerpt.lines:
        panes.append(
            Panel(
                title="change" if desk.diff else "code" if excerpt.language else "model",
                wanted=min(len(excerpt.lines), _CODE_ROWS),
                draw=lambda rows: excerpt.draw(rows, colours=look.colours),
            )
        )
    if printed := last_lines(desk.printed.text, _OUTPUT_ROWS):
        panes.append(
            Panel(
                title="output",
                wanted=len(printed),
                draw=lambda rows: Group(*(unwrapped(line) for line in printed[-rows:])),
            )
        )
    return panes


def standing_panes(state: RunState, look: TerminalStyle) -> list[Panel]:
    """Return the panels that stay: the plan and the tests."""
    panes: list[Panel] = []
    plan = _plan(state, look)
    if plan.rows:
        panes.append(Panel(title="plan", wanted=min(plan.rows, _PLAN_ROWS), draw=plan.draw))
    if state.lattice.rows:
        lattice = state.lattice
        panes.append(
            Panel(
                title="tests",
                wanted=LatticePicture(lattice=lattice, max_rows=_LATTICE_ROWS).rows,
                draw=lambda rows: LatticePicture(lattice=lattice, max_rows=rows),
            )
        )
    return panes


def _excerpt(desk: AttemptView) -> Excerpt:
    if desk.diff:
        return excerpt_of_diff(desk.diff)
    return excerpt_of_reply(desk.writing.text, whole=desk.replied)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Plan steps are ticked on acceptance, files when written, checks when they end."""

    steps: tuple[Text, ...]
    marked: tuple[Text, ...]

    @property
    def rows(self) -> int:
        return len(self.steps) + len(self.marked)

    def draw(self, rows: int) -> RenderableType:
        if self.rows <= rows:
            return Group(*self.steps, *self.marked)
        # Lines that show progress stay; steps get the remaining room.
        room = max(rows - len(self.marked) - 1, 0)
        left = self.rows - room - len(self.marked[: rows - 1])
        return Group(
            *self.steps[:room],
            *self.marked[: rows - 1 - room],
            unwrapped(f"and {left} more", "dim"),
        )


def _plan(state: RunState, look: TerminalStyle) -> _Plan:
    done = True if state.accepted else None
    written = {path: True if path in state.written else None for path in state.targets}
    return _Plan(
        steps=tuple(_line(look.tick(done=done), step) for step in state.steps),
        marked=(
            *(_line(look.tick(done=mark), f"write {path}") for path, mark in written.items()),
            *(_line(look.tick(done=mark), f"check {name}") for name, mark in state.checks.items()),
        ),
    )


def _line(tick: Text, text: str) -> Text:
    return unwrapped().append_text(tick).append(f" {one_line(text)}")
