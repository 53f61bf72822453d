"""A live view of a run in a terminal, redrawn several times a second."""

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
from rich.rule import Rule
from rich.segment import ControlType, Segment
from rich.text import Text

from assay.cli.render.event_text import event_line
from assay.cli.render.panels import Panel, foot, head, standing_panes, working_panes
from assay.cli.render.symbols import MARKS, TerminalStyle, look_of
from assay.cli.render.view_model import RunState
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
