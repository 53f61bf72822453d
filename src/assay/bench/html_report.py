"""HTML report of a run: one self-contained page with tables and charts."""

import re
from html import escape
from typing import Final

from assay.bench.charts import amount_bars, curve, rate_bars
from assay.bench.markdown_report import as_markdown
from assay.bench.summary import Summary, rate_of

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .7rem; text-align: left;
  border-bottom: 1px solid #d5dbe1; vertical-align: top; } th { font-weight: 600; }
svg { max-width: 100%; height: auto; margin: 1rem 0; display: block; }
@media (prefers-color-scheme: dark) { body { background: #14191d; color: #e4e9ed; }
  th, td { border-color: #37424b; } svg { background: #f7f9fa; border-radius: 6px; padding: 8px; } }
"""
_ROW: Final = re.compile(r"(?<!\\)\|")
_BOLD: Final = re.compile(r"\*\*(.+?)\*\*")


def as_html(summary: Summary) -> str:
    """Return the page."""
    title = f"{summary.asked['suite']}: {summary.asked['model']}, {summary.asked['track']}"
    head, _, rest = as_markdown(summary).partition("\n\n## Rates")
    body = "\n".join((_blocks(head), *_pictures(summary), _blocks(f"## Rates{rest}")))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _pictures(summary: Summary) -> list[str]:
    rates = [("all", summary.rate)]
    languages = summary.languages
    if len(languages) > 1:
        rates.extend((language, rate_of(results)) for language, results in languages.items())
    pictures = [rate_bars(rates, "Solved, with 95 % intervals")]
    if summary.curve:
        pictures.append(
            curve(summary.curve, "Solved exercises by number of proposals", "proposals")
        )
    times: list[tuple[str, float]] = []
    costs: list[tuple[str, float]] = []
    for language, results in languages.items():
        counted = [result for result in results if result.counted]
        n = len(counted) or 1
        times.append((language, sum(result.wall_s for result in counted) / n))
        costs.append((language, sum(result.usage.cost_usd or 0.0 for result in counted) / n))
    pictures.append(amount_bars(times, "Time per exercise", "s"))
    if any(cost for _, cost in costs):
        pictures.append(amount_bars(costs, "Cost per exercise", "$"))
    return pictures


def _blocks(markdown: str) -> str:
    """Convert the few Markdown forms of reports to HTML; all other text stays text."""
    return "\n".join(_block(block) for block in markdown.strip().split("\n\n") if block.strip())


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].startswith("#") and len(lines) == 1:
        level = len(lines[0]) - len(lines[0].lstrip("#"))
        return f"<h{level}>{_inline(lines[0].lstrip('# '))}</h{level}>"
    if lines[0].startswith("|"):
        head, _, *rows = lines
        body = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows)
        return f"<table><thead><tr>{_cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _cells(line: str, tag: str) -> str:
    cells = _ROW.split(line)[1:-1]
    return "".join(f"<{tag}>{_inline(cell.strip())}</{tag}>" for cell in cells)


def _inline(text: str) -> str:
    return _BOLD.sub(r"<strong>\1</strong>", escape(text.replace("\\|", "|")))
