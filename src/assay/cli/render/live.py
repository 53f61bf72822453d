"""A live view of a run in a terminal, redrawn several times a second.

Its panels shrink to fewer lines on a small terminal.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import PurePosixPath
from threading import Lock
from typing import Final, assert_never

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

from assay.cli.render.highlighting import excerpt_of_diff, excerpt_of_reply
from assay.cli.render.test_matrix import MARKS, MatrixView, TerminalStyle, look_of, unwrapped
from assay.cli.render.text import (
    ACTIONS,
    clock,
    compact,
    cost,
    count,
    event_line,
    last_lines,
    one_line,
)
from assay.contracts.events import (
    ActionKind,
    AttemptStarted,
    BudgetUsed,
    ChecksWritten,
    Executed,
    FilesChanged,
    ModelReplied,
    OutputDelta,
    Planned,
    Reflected,
    RolledBack,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    Screened,
    TextDelta,
    ToolAnswered,
    Verified,
)
from assay.contracts.messages import Usage
from assay.contracts.verdict import CheckReport, TestMatrix, TestStatus

_CODE_ROWS: Final = 15
_OUTPUT_ROWS: Final = 10
_MATRIX_ROWS: Final = 14
_PLAN_ROWS: Final = 9
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_SPINNER: Final = "|/-\\"
_TURNS_PER_S: Final = 8
_WIDE: Final = 70
_BAR: Final = 18
_CALM: Final = 0.6
_NEAR: Final = 0.85
_TAIL: Final = 1 << 16


@dataclass(slots=True)
class RollingText:
    """The end of a text that keeps growing."""

    text: str = ""

    def add(self, piece: str) -> None:
        self.text += piece
        if len(self.text) > 2 * _TAIL:
            self.text = self.text[-_TAIL:]


@dataclass(slots=True, kw_only=True)
class AttemptProgress:
    """The state of one attempt."""

    action: ActionKind | None = None
    doing: str = "writing code"
    writing: RollingText = field(default_factory=RollingText)
    diff: str = ""
    """The change that the reply made, until the next reply."""
    printed: RollingText = field(default_factory=RollingText)
    replied: bool = False
    """The text is complete: the next piece begins another reply."""
    ran: bool = False
    """The program has ended: the next piece of output belongs to another program."""


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """The state of a run so far. Events may come in any order, as in a resumed run."""

    started: RunStarted | None = None
    steps: tuple[str, ...] = ()
    targets: tuple[PurePosixPath, ...] = ()
    written: set[PurePosixPath] = field(default_factory=set[PurePosixPath])
    checks: dict[str, bool | None] = field(default_factory=dict[str, bool | None])
    """Check commands and their results; None before the first result."""
    attempts: dict[int, AttemptProgress] = field(default_factory=dict[int, AttemptProgress])
    """Attempts in progress; 0 is the planning."""
    left: tuple[int, AttemptProgress] = field(
        default_factory=lambda: (0, AttemptProgress(doing="starting"))
    )
    """The attempt that ended last."""
    test_matrix: TestMatrix = field(default_factory=TestMatrix)
    usage: Usage = field(default_factory=Usage)
    share: float = 0.0
    wall_s: float = 0.0
    accepted: bool = False

    @property
    def focus(self) -> tuple[int, AttemptProgress]:
        """The attempt to show: the first of parallel ones, so that the picture is calm."""
        return next(iter(self.attempts.items()), self.left)

    def apply(self, event: RunEvent) -> None:  # noqa: C901 - one case per event
        """Update the state with one event."""
        match event:
            case RunStarted():
                self.started = event
                self.attempts.setdefault(0, AttemptProgress(doing="planning"))
            case RunResumed():
                pass
            case Planned():
                self.steps, self.targets = event.steps, event.targets
                self.checks = dict.fromkeys(event.checks)
                self.attempts.pop(0, None)
            case ChecksWritten():
                self.written.update(event.paths)
            case AttemptStarted():
                self.attempts.pop(0, None)
                self.attempts[event.attempt] = AttemptProgress(action=event.action)
            case TextDelta():
                shown = self._attempt(event.attempt)
                if shown.replied:
                    shown.writing, shown.replied = RollingText(), False
                shown.writing.add(event.text)
                shown.diff = ""
            case ModelReplied():
                shown = self._attempt(event.attempt)
                # The streamed pieces may belong to an earlier try of the same request.
                shown.writing, shown.replied = RollingText(event.text[-_TAIL:]), True
                self.usage += event.usage
            case OutputDelta():
                shown = self._attempt(event.attempt)
                if shown.ran:
                    shown.printed, shown.ran = RollingText(), False
                shown.printed.add(event.text)
            case ToolAnswered():
                self._attempt(event.attempt).ran = True
            case FilesChanged():
                shown = self._attempt(event.attempt)
                self.written.update(change.path for change in event.changes)
                shown.doing, shown.diff = "screening", event.diff[:_TAIL]
            case Screened():
                doing = "writing code" if event.blocked else "trying it out"
                self._attempt(event.attempt).doing = doing
            case Executed():
                shown = self._attempt(event.attempt)
                shown.doing, shown.ran = "verifying in a fresh sandbox", True
                self.test_matrix = event.test_matrix
                self._tick(event.reports)
            case Verified():
                self._tick(event.verdict.reports)
                self.accepted = self.accepted or event.verdict.accepted
                self._leave(event.attempt)
            case RolledBack() | Reflected():
                self._leave(event.attempt)
            case BudgetUsed():
                self.usage, self.share, self.wall_s = event.usage, event.share, event.wall_s
            case RunEnded(outcome=outcome):
                self.accepted = outcome.accepted
                self.usage, self.wall_s = outcome.usage, outcome.wall_s
                self.test_matrix = outcome.test_matrix
                for attempt in tuple(self.attempts):
                    self._leave(attempt)
            case _:
                assert_never(event)

    def _tick(self, reports: Sequence[CheckReport]) -> None:
        for report in reports:
            self.checks[report.command] = report.passed

    def _leave(self, attempt: int) -> None:
        if shown := self.attempts.pop(attempt, None):
            shown.doing = "deciding what to do next"
            self.left = attempt, shown

    def _attempt(self, attempt: int) -> AttemptProgress:
        return self.attempts.setdefault(attempt, AttemptProgress())


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One part of the live view."""

    title: str
    wanted: int
    """Number of lines it would fill."""
    draw: Callable[[int], RenderableType]
    """Draws the panel within that many lines."""


def head(state: RunProgress, look: TerminalStyle, seconds: float) -> list[Text]:
    """Return the activity, the goal, the model, the backend and the workspace."""
    attempt, shown = state.focus
    frames = _PLAIN_SPINNER if look.ascii_only else _SPINNER
    line = unwrapped()
    line.append(f"{frames[int(seconds * _TURNS_PER_S) % len(frames)]} ", "cyan")
    line.append("accepted" if state.accepted else shown.doing, "bold")
    most = state.started.spec.limits.attempts if state.started else 0
    if attempt:
        of = f" of {most}" if most else ""
        move = f", {ACTIONS[shown.action]}" if shown.action else ""
        line.append(f"  attempt {attempt}{of}{move}", "cyan")
    if len(state.attempts) > 1:
        line.append(f"  {len(state.attempts)} side by side", "dim")
    lines = [line]
    if state.started:
        started = state.started
        lines.append(unwrapped(one_line(started.spec.goal, 400)))
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


def working_panes(state: RunProgress, look: TerminalStyle) -> list[Panel]:
    """Return the panels that change often: code and output of programs."""
    _, shown = state.focus
    panes: list[Panel] = []
    if shown.diff:
        title, excerpt = "change", excerpt_of_diff(shown.diff)
    else:
        excerpt = excerpt_of_reply(shown.writing.text, whole=shown.replied)
        title = "code" if excerpt.language else "model"
    if excerpt.lines:
        panes.append(
            Panel(
                title=title,
                wanted=min(len(excerpt.lines), _CODE_ROWS),
                draw=lambda rows: excerpt.draw(rows, colours=look.colours),
            )
        )
    if printed := last_lines(shown.printed.text, _OUTPUT_ROWS):
        panes.append(
            Panel(
                title="output",
                wanted=len(printed),
                draw=lambda rows: Group(*(unwrapped(line) for line in printed[-rows:])),
            )
        )
    return panes


def standing_panes(state: RunProgress, look: TerminalStyle) -> list[Panel]:
    """Return the panels that stay: the plan and the tests."""
    panes: list[Panel] = []
    # Steps are ticked on acceptance, files when written, checks when they end.
    done = True if state.accepted else None
    steps = [_ticked(look, step, done=done) for step in state.steps]
    marked = [
        *(
            _ticked(look, f"write {path}", done=True if path in state.written else None)
            for path in state.targets
        ),
        *(_ticked(look, f"check {name}", done=mark) for name, mark in state.checks.items()),
    ]
    if wanted := len(steps) + len(marked):
        panes.append(
            Panel(
                title="plan",
                wanted=min(wanted, _PLAN_ROWS),
                draw=lambda rows: _plan(steps, marked, rows),
            )
        )
    if state.test_matrix.rows:
        matrix = state.test_matrix
        panes.append(
            Panel(
                title="tests",
                wanted=MatrixView(test_matrix=matrix, max_rows=_MATRIX_ROWS).rows,
                draw=lambda rows: MatrixView(test_matrix=matrix, max_rows=rows),
            )
        )
    return panes


def _ticked(look: TerminalStyle, text: str, *, done: bool | None) -> Text:
    return unwrapped().append_text(look.tick(done=done)).append(f" {one_line(text)}")


def _plan(steps: Sequence[Text], marked: Sequence[Text], rows: int) -> RenderableType:
    if len(steps) + len(marked) <= rows:
        return Group(*steps, *marked)
    # Lines that show progress stay; steps get the remaining room.
    room = max(rows - len(marked) - 1, 0)
    left = len(steps) + len(marked) - room - len(marked[: rows - 1])
    return Group(*steps[:room], *marked[: rows - 1 - room], unwrapped(f"and {left} more", "dim"))


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
    view = LiveView(console, verbose=verbose, now=now, frames_per_s=frames_per_s)
    view.start()
    try:
        yield view
    finally:
        view.stop()


class LiveView(RenderHook):
    """A live view of a run on a terminal. Events come from the event loop; a thread draws."""

    def __init__(
        self,
        console: Console,
        *,
        verbose: bool = False,
        now: Clock = time.monotonic,
        frames_per_s: float = _FRAMES_PER_S,
    ) -> None:
        self._console = console
        self._look = look_of(console)
        self._verbose = verbose
        self._now = now
        self._state = RunProgress()
        self._lock = Lock()
        self._told_at: float | None = None
        self.drawn: tuple[int, ...] = ()
        """Lengths of the lines on the screen."""
        self._live = Live(
            console=console,
            get_renderable=self.picture,
            refresh_per_second=frames_per_s,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )

    def __call__(self, event: RunEvent) -> None:
        self.apply(event)
        is_told = self._verbose and not isinstance(event, BudgetUsed | TextDelta | OutputDelta)
        if is_told or _is_worth_keeping(event):
            self._console.print(_kept_line(event, self._look), soft_wrap=True)

    def apply(self, event: RunEvent) -> None:
        """Update the picture with one event."""
        with self._lock:
            self._state.apply(event)
            if self._told_at is None or isinstance(event, BudgetUsed):
                self._told_at = self._now()

    def picture(self) -> RenderableType:
        """Copy the state, so that drawing does not block events."""
        with self._lock:
            state = self._state
            since = 0.0 if self._told_at is None else self._now() - self._told_at
            seconds = state.wall_s + since
            return _Frame(
                view=self,
                head=head(state, self._look, seconds=seconds),
                working=working_panes(state, self._look),
                standing=standing_panes(state, self._look),
                foot=partial(foot, state.usage, state.share, seconds),
            )

    @contextmanager
    def aside(self) -> Generator[None]:
        """Hide the picture temporarily."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        """Draw from now on."""
        self._live.start()
        self._console.push_render_hook(self)

    def stop(self) -> None:
        """Remove the picture."""
        self._console.pop_render_hook()
        self._live.stop()
        self.drawn = ()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase a whole frame even if a narrower terminal has wrapped its lines."""
        width = max(self._console.width, 1)
        extra = sum((length - 1) // width for length in self.drawn if length)
        if not extra:
            return renderables
        up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        return [Control(*(up * extra)), *renderables]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """One picture."""

    view: LiveView
    head: Sequence[Text]
    working: Sequence[Panel]
    standing: Sequence[Panel]
    foot: Callable[[int], Table]
    """Draws the last line for a width."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # One column stays free: some terminals wrap as soon as the last one is written.
        width = max(options.max_width - 1, 1)

        def lines_of(part: RenderableType, columns: int) -> Lines:
            return console.render_lines(part, options.update(width=columns), pad=False)

        def stack(panes: Sequence[Panel], columns: int, room: int) -> Lines:
            lines: Lines = []
            shares = shared_out([pane.wanted for pane in panes], room)
            for pane, rows in zip(panes, shares, strict=True):
                if rows:
                    title = Rule(Text(pane.title, "dim"), align="left", style="dim")
                    lines += lines_of(title, columns)[:1]
                    lines += lines_of(pane.draw(rows - 1), columns)[: rows - 1]
            return lines

        gap = [Text()] if console.height >= _ROOMY else []
        above = lines_of(Group(*gap, *self.head), width)
        below = lines_of(self.foot(width), width)[:1]
        room = max(min(console.height - 1, _TALLEST) - len(above) - len(below), 0)
        if width >= _SIDE_BY_SIDE and self.working and self.standing:
            right = width * 2 // 5
            left = width - right - _GAP
            middle = _beside(
                stack(self.working, left, room), stack(self.standing, right, room), left
            )
        else:
            # Standing panes get room first, since they are small and say the most.
            middle = stack([*self.standing, *self.working], width, room)
        lines = [*above, *middle, *below][: max(console.height - 1, 1)]
        self.view.drawn = tuple(Segment.get_line_length(line) for line in lines)
        for line in lines:
            yield from line
            yield Segment.line()


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
