/** Standalone elements: code, program output, tables, and copy buttons. */

import { fill, h } from "./dom.js";
import { oneLine, plural } from "./format.js";
import { highlighted } from "./highlight.js";
import { icon } from "./icons.js";
import { languageName } from "./languages.js";

const FOLDED_LINES = 28;
const MOST_ROWS = 200;
const COPIED_MS = 1600;

/** @param {() => string} read returns the text to copy, called on each click */
export function copyButton(read, label = "Copy") {
  const button = h("button", { type: "button", class: "icon-button copy", "aria-label": label, title: label }, icon("copy"));
  button.addEventListener("click", async () => {
    const copied = await copy(read());
    fill(button, icon(copied ? "check" : "warning"));
    button.setAttribute("aria-label", copied ? "Copied" : "Copying is not allowed here");
    setTimeout(() => {
      fill(button, icon("copy"));
      button.setAttribute("aria-label", label);
    }, COPIED_MS);
  });
  return button;
}

/** Browsers have no clipboard API over plain HTTP from another machine: an older command works there. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** @param {string} code @param {string} language @param {{label?: any, tail?: any, state?: string}} [more] */
export function codeBlock(code, language, more = {}) {
  const name = languageName(language);
  const lines = h("code", {}, highlighted(code, language));
  return h(
    "figure", { class: `code ${more.state ?? ""}` },
    h("figcaption", { class: "code-head" },
      h("span", { class: "code-name" }, more.label ?? name), more.tail,
      copyButton(() => code, "Copy the code")),
    foldable(h("pre", { tabindex: "0", "aria-label": `${name} code` }, lines), code),
  );
}

/** Show the beginning of long content, and all of it on request. */
export function foldable(element, text) {
  const count = text.split("\n", 5000).length;
  if (count <= FOLDED_LINES + 6) return element;
  const button = h("button", { type: "button", class: "unfold", "aria-expanded": "false" });
  const box = h("div", { class: "foldable folded" }, element, button);
  const label = (folded) => {
    button.textContent = folded ? `Show all ${plural(count, "line")}` : "Show less";
    button.setAttribute("aria-expanded", String(!folded));
  };
  button.addEventListener("click", () => label(box.classList.toggle("folded")));
  label(true);
  return box;
}

const isNumber = (text) => /^[-+−]?[\d.,\s]*\d[\d.,]*(?:e[+-]?\d+)?\s*%?$/i.test(text.trim());
const isEmpty = (text) => ["", "NaN", "nan", "None", "-", "—"].includes(text.trim());

/** Column header. A column without a name, such as an index, has none. */
const top = (value, kind) => {
  const cell = h("th", { class: kind, scope: "col" }, value);
  return cell.textContent.trim() ? cell : h("td", { class: kind });
};

/**
 * @param {{head: any[], rows: any[][], align?: string[], index?: number}} table cells are text or
 * nodes; the first `index` columns name their rows
 */
export function tableOf({ head, rows, align, index = 0 }) {
  const numeric = (column) =>
    align ? align[column] === "right" : rows.some((row) => typeof row[column] === "string" && isNumber(row[column]))
      && rows.every((row) => typeof row[column] !== "string" || isNumber(row[column]) || isEmpty(row[column]));
  const columns = Math.max(head.length, ...rows.slice(0, MOST_ROWS).map((row) => row.length));
  const kinds = Array.from({ length: columns }, (_, column) =>
    numeric(column) ? "number" : align?.[column] === "center" ? "centred" : null);
  const cell = (value, column, tag) =>
    h(tag, { class: kinds[column], scope: tag === "th" ? "row" : null }, value);
  const body = h("tbody", {}, rows.slice(0, MOST_ROWS).map((row) =>
    h("tr", {}, row.map((value, column) => cell(value, column, column < index ? "th" : "td")))));
  const heads = head.length
    ? h("thead", {}, h("tr", {}, head.map((value, column) => top(value, kinds[column]))))
    : null;
  const named = [...(heads?.querySelectorAll("th") ?? [])].map((each) => each.textContent.trim());
  const name = named.length ? `Table: ${oneLine(named.join(", "), 80)}` : "Table";
  const more = rows.length > MOST_ROWS ? h("p", { class: "quiet" }, `${plural(rows.length - MOST_ROWS, "more row")} not shown`) : null;
  return h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": name }, h("table", {}, heads, body), more);
}
