"""What is measured on a page: contrast from computed styles, and the rules of axe-core."""

from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ENOUGH = 4.5
"""The contrast that WCAG asks of text, which also holds for the icons of our buttons."""

_COLOURS = r"""
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) =>
    [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = ([r, g, b]) => {
    const part = (c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(rgba(getComputedStyle(at).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const contrast = (element) => {
    const below = ground(element);
    const style = getComputedStyle(element);
    const colour = over(rgba(element.closest("svg text") ? style.fill : style.color), below);
    const [a, b] = [light(colour), light(below)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
"""

_OF_TEXTS = f"""() => {{
  {_COLOURS}
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {{
    const element = node.parentElement;
    const shown = element.checkVisibility({{ visibilityProperty: true, opacityProperty: true }});
    if (!node.data.trim() || !shown) continue;
    if (element.closest(".unseen, option, :disabled")) continue;
    found.push([contrast(element), node.data.trim().slice(0, 40), `${{element.className}}`]);
  }}
  return found;
}}"""

_OF_CONTROL = f"""(control) => {{
  {_COLOURS}
  const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
  const texts = [...control.querySelectorAll(":not(svg, svg *)")].filter((each) =>
    [...each.childNodes].some(isText));
  return Math.min(...[control, ...texts].map(contrast));
}}"""

_KINDS = r"""() => {
  const known = (window.knownKinds ??= new Set());
  const kinds = [];
  for (const control of document.querySelectorAll("button:enabled, .side-link, .row, .home-run")) {
    const place = control.closest(".toasts, .dialog, .sidebar, .ending, .problem")?.className ?? "";
    const kind = `${place.split(" ")[0]} ${control.className}`.trim();
    const drawn = control.textContent.trim() || control.querySelector("svg");
    const shown = drawn && control.checkVisibility({ visibilityProperty: true });
    if (known.has(kind) || !shown) continue;
    known.add(kind);
    control.dataset.kind = kind;
    kinds.push(kind);
  }
  return kinds;
}"""


def contrasts_of_texts(page: "Page") -> list[tuple[float, str, str]]:
    """Return the contrast of every text that is shown, with its beginning and its class."""
    found: list[tuple[float, str, str]] = page.evaluate(_OF_TEXTS)
    return found


def contrasts_of_controls(page: "Page") -> dict[str, dict[str, float]]:
    """Return, for each new kind of control, its contrast at rest, under the pointer, with focus."""
    found: dict[str, dict[str, float]] = {}
    for kind in page.evaluate(_KINDS):
        control = page.locator(f'[data-kind="{kind}"]').first
        page.mouse.move(0, 0)
        found[kind] = {"rest": _contrast(control)}
        control.hover(force=True)
        found[kind]["hover"] = _contrast(control)
        page.mouse.move(0, 0)
        control.focus()
        found[kind]["focus"] = _contrast(control)
    return found


def _contrast(control: "Locator") -> float:
    return round(float(control.evaluate(_OF_CONTROL)), 2)


def violations(page: "Page") -> list[str]:
    """Return what axe-core finds on the page: the rule, and where it is broken."""
    script = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(script)
    options: dict[str, Any] = {
        "resultTypes": ["violations"],
        "rules": {"label-content-name-mismatch": {"enabled": True}},
    }
    result = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{found['id']}: {node['html'][:160]}"
        for found in result["violations"]
        for node in found["nodes"]
    ]
