"""Bar chart of the medians, with whiskers up to the p95."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison.contenders import CONTENDERS
from benchmarks.comparison.measurements import PROGRAMS, Measurements, Spread

_OURS: Final = "#d1495b"
_OTHERS: Final = "#8d99ae"
_INK: Final = "#22223b"
_FAINT: Final = "#6c757d"
_WIDTH_INCHES: Final = 13.0
_ROW_INCHES: Final = 0.6
_FRAME_INCHES: Final = 1.8
_LEAST_MS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bar in each panel."""

    label: str
    timed: str
    ours: bool
    spreads: Sequence[Spread | None]


def rows_of(measured: Measurements) -> list[Row]:
    """Return the rows, fastest first by the last program."""
    found = {
        (item.runner, item.program): item.spread
        for item in measured.latencies
        if item.scope == "whole"
    }
    rows = [
        Row(
            label=who.label,
            timed=who.timed,
            ours=who.name.startswith("native"),
            spreads=[found.get((who.name, program)) for program in PROGRAMS],
        )
        for who in CONTENDERS
        if any(found.get((who.name, program)) for program in PROGRAMS)
    ]
    return sorted(rows, key=lambda row: row.spreads[-1].p50_ms if row.spreads[-1] else 0)


def draw(measured: Measurements, target: Path) -> None:
    """Write a PNG. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    rows = rows_of(measured)
    # matplotlib is only partly typed.
    figure: Any = Figure(
        figsize=(_WIDTH_INCHES, _FRAME_INCHES + _ROW_INCHES * len(rows)), layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12, wspace=0.02)
    panels: Any = figure.subplots(ncols=len(PROGRAMS), sharex=True)
    for place, (program, axes) in enumerate(zip(PROGRAMS, panels, strict=True)):
        _draw_bars(axes, rows, place)
        _draw_frame(axes, rows, named=place == 0)
        axes.set_title(program, family="monospace", fontsize=12, color=_INK, loc="left", pad=10)
    figure.suptitle(
        "Time of one execution, its sandbox included",
        fontsize=15,
        fontweight="bold",
        color=_INK,
    )
    figure.supxlabel(
        "milliseconds, logarithmic. Bar: median, whisker: 95th percentile, of "
        f"{measured.rounds} interleaved rounds with pauses of {measured.pause_ms} ms",
        fontsize=9.5,
        color=_FAINT,
    )
    figure.savefig(target, dpi=150, facecolor="white")


def _draw_bars(axes: Any, rows: Sequence[Row], place: int) -> None:
    for number, row in enumerate(rows):
        spread = row.spreads[place]
        if spread is None:
            axes.text(_LEAST_MS * 1.1, number, "failed", color=_FAINT, verticalalignment="center")
            continue
        axes.barh(number, spread.p50_ms, height=0.62, color=_OURS if row.ours else _OTHERS)
        axes.plot([spread.p50_ms, spread.p95_ms], [number, number], color=_INK, linewidth=1.2)
        axes.plot(spread.p95_ms, number, marker="|", markersize=9, color=_INK)
        inside = spread.p50_ms > _LEAST_MS * 2.5
        axes.annotate(
            shown_ms(spread.p50_ms),
            (spread.p50_ms if inside else spread.p95_ms, number),
            xytext=(-6 if inside else 9, 0),
            textcoords="offset points",
            horizontalalignment="right" if inside else "left",
            verticalalignment="center",
            fontsize=11,
            fontweight="bold",
            color="white" if inside else _INK,
        )
        if inside:
            axes.annotate(
                shown_ms(spread.p95_ms),
                (spread.p95_ms, number),
                xytext=(8, 0),
                textcoords="offset points",
                verticalalignment="center",
                fontsize=9,
                color=_FAINT,
            )


def shown_ms(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _draw_frame(axes: Any, rows: Sequence[Row], *, named: bool) -> None:
    largest = max((spread.p95_ms for row in rows for spread in row.spreads if spread), default=10)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST_MS, largest * 2.5)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [""] * len(rows))
    axes.grid(axis="x", which="major", color="#e2e5e9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=9.5, labelcolor=_FAINT, color=_FAINT)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    if named:
        for number, row in enumerate(rows):
            _write_name(axes, number, row)


def _write_name(axes: Any, number: int, row: Row) -> None:
    for text, shift, size, color, weight in (
        (row.label, 7, 11, _INK, "bold" if row.ours else "normal"),
        (row.timed, -7, 8.5, _FAINT, "normal"),
    ):
        axes.annotate(
            text,
            (0, number),
            xycoords=("axes fraction", "data"),
            xytext=(-8, shift),
            textcoords="offset points",
            horizontalalignment="right",
            verticalalignment="center",
            fontsize=size,
            color=color,
            fontweight=weight,
        )
