"""A live view of a run in a terminal, redrawn several times a second.

Its panels shrink to fewer lines on a small terminal.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from threading import Lock
from typing import Final

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    Group,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from assay.cli.render.highlighting import Excerpt, excerpt_of_diff, excerpt_of_reply
from assay.cli.render.test_matrix import MARKS, LatticePicture, TerminalStyle, look_of, unwrapped
from assay.cli.render.text import (
    MOVES,
    clock,
    compact,
    cost,
    count,
    event_line,
    last_lines,
    one_line,
)
from assay.cli.render.view_model import AttemptView, RunState
from assay.contracts.events import (
    BudgetUsed,
    ChecksWritten,
    OutputDelta,
    Reflected,
    RolledBack,
    RunEnded,
    RunEvent,
    RunResumed,
    Screened,
    TextDelta,
    Verified,
)
from assay.contracts.messages import Usage
from assay.contracts.verdict import TestStatus

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
    if state.test_matrix.rows:
        test_matrix = state.test_matrix
        panes.append(
            Panel(
                title="tests",
                wanted=LatticePicture(test_matrix=test_matrix, max_rows=_LATTICE_ROWS).rows,
                draw=lambda rows: LatticePicture(test_matrix=test_matrix, max_rows=rows),
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


Clock = Callable[[], float]
Lines = list[list[Segment]]

_FRAMES_PER_S: Final = 8.0
_TALLEST: Final = 44
_SIDE_BY_SIDE: Final = 116
_GAP: Final = 2
_ROOMY: Final = 20
_LEAST: Final = 3
"""Minimum number of lines of a pane, with its title."""


@contextmanager
def open_live_view(
    console: Console,
    *,
    verbose: bool,
    now: Clock = time.monotonic,
    frames_per_s: float = _FRAMES_PER_S,
) -> Generator["LiveView"]:
    """Draw a run while it works; important events stay above as lines."""
    easel = LiveDisplay(look=look_of(console), now=now)
    live = Live(
        console=console,
        get_renderable=easel.picture,
        refresh_per_second=frames_per_s,
        transient=True,
        redirect_stdout=False,
        vertical_overflow="crop",
    )
    view = LiveView(console=console, easel=easel, live=live, verbose=verbose)
    with view.drawing():
        yield view


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A live view of a run on a terminal."""

    console: Console
    easel: "LiveDisplay"
    live: Live
    verbose: bool

    def __call__(self, event: RunEvent) -> None:
        self.easel.apply(event)
        is_told = self.verbose and not isinstance(event, BudgetUsed | TextDelta | OutputDelta)
        if is_told or _is_worth_keeping(event):
            self.console.print(_kept_line(event, self.easel.look), soft_wrap=True)

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Draw as long as this is open."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    @contextmanager
    def aside(self) -> Generator[None]:
        """Hide the picture temporarily."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        self.live.start()
        self.console.push_render_hook(_Rewrapped(console=self.console, easel=self.easel))

    def _stop(self) -> None:
        self.console.pop_render_hook()
        self.live.stop()
        self.easel.drawn = ()


def _is_worth_keeping(event: RunEvent) -> bool:
    if isinstance(event, Screened):
        return bool(event.findings)
    return isinstance(event, RunResumed | ChecksWritten | Verified | RolledBack | Reflected)


def _kept_line(event: RunEvent, look: TerminalStyle) -> Text:
    match event:
        case Verified(verdict=verdict):
            mark = look.tick(done=verdict.accepted)
        case RunEnded(outcome=outcome):
            mark = look.tick(done=outcome.accepted)
        case RolledBack() | Screened():
            mark = look.symbol(TestStatus.ERROR)
            mark.stylize(MARKS[TestStatus.SKIPPED].style)
        case _:
            mark = look.symbol(None)
    return mark.append(f" {event_line(event)}", "default")


@dataclass(slots=True, kw_only=True)
class LiveDisplay:
    """The state to draw. Events come from the event loop; a thread draws."""

    look: TerminalStyle
    now: Clock
    state: RunState = field(default_factory=RunState)
    drawn: tuple[int, ...] = ()
    """Lengths of the lines on the screen."""
    _lock: Lock = field(default_factory=Lock)
    _told_at: float | None = None

    def apply(self, event: RunEvent) -> None:
        with self._lock:
            self.state.apply(event)
            if self._told_at is None or isinstance(event, BudgetUsed):
                self._told_at = self.now()

    def picture(self) -> "_Picture":
        """Copy the state, so that drawing does not block events."""
        with self._lock:
            state = self.state
            since = 0.0 if self._told_at is None else self.now() - self._told_at
            return _Picture(
                easel=self,
                head=head(state, self.look, seconds=state.wall_s + since),
                working=working_panes(state, self.look),
                standing=standing_panes(state, self.look),
                usage=state.usage,
                share=state.share,
                seconds=state.wall_s + since,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """One frame."""

    easel: LiveDisplay
    head: Sequence[Text]
    working: Sequence[Panel]
    standing: Sequence[Panel]
    usage: Usage
    share: float
    seconds: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # One column stays free: some terminals wrap as soon as the last one is written.
        width = max(options.max_width - 1, 1)
        sheet = _Canvas(console=console, options=options)
        gap = [Text()] if console.height >= _ROOMY else []
        above = sheet.lines(Group(*gap, *self.head), width)
        below = sheet.lines(foot(self.usage, self.share, self.seconds, width), width)[:1]
        room = max(min(console.height - 1, _TALLEST) - len(above) - len(below), 0)
        if width >= _SIDE_BY_SIDE and self.working and self.standing:
            right = width * 2 // 5
            left = width - right - _GAP
            middle = _beside(
                sheet.stack(self.working, left, room), sheet.stack(self.standing, right, room), left
            )
        else:
            # Standing panes get room first, since they are small and say the most.
            middle = sheet.stack([*self.standing, *self.working], width, room)
        lines = [*above, *middle, *below][: max(console.height - 1, 1)]
        self.easel.drawn = tuple(Segment.get_line_length(line) for line in lines)
        for line in lines:
            yield from line
            yield Segment.line()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Canvas:
    """A renderer of parts as lines of a given width."""

    console: Console
    options: ConsoleOptions

    def lines(self, part: RenderableType, width: int) -> Lines:
        return self.console.render_lines(part, self.options.update(width=width), pad=False)

    def stack(self, panes: Sequence[Panel], width: int, room: int) -> Lines:
        lines: Lines = []
        for pane, rows in zip(
            panes, shared_out([pane.wanted for pane in panes], room), strict=True
        ):
            if rows:
                title = Rule(Text(pane.title, "dim"), align="left", style="dim")
                lines += self.lines(title, width)[:1]
                lines += self.lines(pane.draw(rows - 1), width)[: rows - 1]
        return lines


def shared_out(wanted: Sequence[int], room: int) -> list[int]:
    """Share lines, titles included, among panes: a minimum for each, then one more in turn.

    A pane that would get less than its minimum gets none.
    """
    given = [0] * len(wanted)
    for place, rows in enumerate(wanted):
        least = min(rows + 1, _LEAST)
        if least <= room:
            given[place] = least
            room -= least
    while room > 0:
        hungry = [place for place, rows in enumerate(wanted) if 0 < given[place] < rows + 1]
        if not hungry:
            break
        for place in hungry[:room]:
            given[place] += 1
        room -= len(hungry[:room])
    return given


def _beside(left: Lines, right: Lines, width: int) -> Lines:
    rows: Lines = []
    empty: list[Segment] = []
    for one, other in zip_longest(left, right, fillvalue=empty):
        rows.append([*Segment.adjust_line_length(one, width + _GAP), *other] if other else one)
    return rows


@dataclass(slots=True, kw_only=True)
class _Rewrapped(RenderHook):
    """A hook that erases a whole frame even if a narrower terminal has wrapped its lines."""

    console: Console
    easel: LiveDisplay

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        width = max(self.console.width, 1)
        extra = sum((length - 1) // width for length in self.easel.drawn if length)
        if not extra:
            return renderables
        up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        return [Control(*(up * extra)), *renderables]
