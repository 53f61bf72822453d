"""SVG charts of a run, drawn without a library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from assay.bench.statistics import Rate

_INK: Final = "#1f2933"
_FAINT: Final = "#d5dbe1"
_BAR: Final = "#3d7ea6"
_WHISKER: Final = "#12303f"
_ROW: Final = 26
_LEFT: Final = 150
_WIDTH: Final = 640
_PLOT: Final = _WIDTH - _LEFT - 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart."""

    label: str
    value: float
    """From 0 to 1."""
    low: float | None = None
    high: float | None = None
    text: str = ""


def rate_bars(rates: Sequence[tuple[str, Rate]], title: str) -> str:
    """Draw rates with their intervals, one below the other."""
    bars: list[Bar] = []
    for label, rate in rates:
        low, high = rate.interval
        text = f"{100 * rate.value:.0f} %  ({rate.successes}/{rate.trials})"
        bars.append(Bar(label=label, value=rate.value, low=low, high=high, text=text))
    return _bars(bars, title, scale=("0", "50 %", "100 %"))


def amount_bars(amounts: Sequence[tuple[str, float]], title: str, unit: str) -> str:
    """Draw amounts, such as seconds or dollars, one below the other."""
    most = max((amount for _, amount in amounts), default=0.0) or 1.0
    bars = [
        Bar(label=label, value=amount / most, text=f"{amount:.4g} {unit}")
        for label, amount in amounts
    ]
    return _bars(bars, title, scale=("0", f"{most / 2:.3g}", f"{most:.3g} {unit}"))


def _bars(bars: Sequence[Bar], title: str, *, scale: tuple[str, str, str]) -> str:
    height = 34 + _ROW * len(bars) + 24
    parts: list[str] = []
    bottom = 34 + _ROW * len(bars)
    for share, text in zip((0.0, 0.5, 1.0), scale, strict=True):
        x = _LEFT + share * _PLOT
        parts.append(f'<line x1="{x:.1f}" y1="30" x2="{x:.1f}" y2="{bottom}" stroke="{_FAINT}"/>')
        parts.append(_text(x, bottom + 16, text, anchor="middle", size=11))
    for place, bar in enumerate(bars):
        y = 34 + _ROW * place
        middle = y + _ROW / 2
        parts.append(_text(_LEFT - 8, middle + 4, bar.label, anchor="end"))
        parts.append(
            f'<rect x="{_LEFT}" y="{y + 5}" width="{bar.value * _PLOT:.1f}" '
            f'height="{_ROW - 10}" rx="2" fill="{_BAR}"/>'
        )
        right = bar.value
        if bar.low is not None and bar.high is not None:
            low, high = _LEFT + bar.low * _PLOT, _LEFT + bar.high * _PLOT
            parts.append(
                f'<path d="M{low:.1f} {middle - 4} V{middle + 4} M{low:.1f} {middle} H{high:.1f} '
                f'M{high:.1f} {middle - 4} V{middle + 4}" stroke="{_WHISKER}" fill="none"/>'
            )
            right = bar.high
        parts.append(_text(_LEFT + right * _PLOT + 6, middle + 4, bar.text, size=12))
    return _svg(title, height, parts)


def curve(shares: Sequence[float], title: str, axis: str) -> str:
    """Draw the growth of a rate from step to step."""
    height, top, bottom = 230, 34, 190
    steps = max(len(shares), 1)
    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * (bottom - top)
        parts.append(
            f'<line x1="{_LEFT - 90}" y1="{y:.1f}" x2="{_WIDTH - 30}" y2="{y:.1f}" '
            f'stroke="{_FAINT}"/>'
        )
        parts.append(_text(_LEFT - 96, y + 4, f"{100 * share:.0f} %", anchor="end", size=11))
    left, right = _LEFT - 70, _WIDTH - 50
    width = (right - left) / max(steps - 1, 1)
    points: list[str] = []
    for place, share in enumerate(shares):
        x, y = left + place * width, bottom - share * (bottom - top)
        points.append(f"{x:.1f},{y:.1f}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_BAR}"/>')
        parts.append(_text(x, bottom + 16, str(place + 1), anchor="middle", size=11))
    parts.append(
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{_BAR}" stroke-width="2"/>'
    )
    parts.append(_text((left + right) / 2, height - 6, axis, anchor="middle", size=12))
    return _svg(title, height, parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{_INK}">{escape(text)}</text>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = _text(0, 18, title, size=15)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'width="{_WIDTH}" role="img" aria-label="{escape(title, quote=True)}" '
        f'font-family="system-ui, sans-serif">{head}{"".join(parts)}</svg>'
    )
