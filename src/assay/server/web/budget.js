/** Budget of a run, and its used share. */

import { h } from "./dom.js";
import { money, seconds, tokens } from "./format.js";

const KINDS = [
  ["attempts", "Attempts", String],
  ["wall_s", "Time", seconds],
  ["tokens", "Tokens", tokens],
  ["usd", "Cost", money],
];

/** Used share of the nearest limit. Pure. */
export function nearest(budget) {
  const shares = KINDS.map(([name]) => budget?.[name]).filter((each) => each?.limit).map(({ used, limit }) => used / limit);
  return Math.min(1, Math.max(0, ...shares));
}

/** @param {any} budget */
export function budgetView(budget) {
  const share = nearest(budget);
  const rows = KINDS.map(([name, title, format]) => {
    const known = budget?.[name];
    if (!known) return null;
    const said = `${format(known.used)}${known.limit ? ` of ${format(known.limit)}` : ""}`;
    const bar = known.limit ? h("progress", { max: "1", value: Math.min(1, known.used / known.limit), "aria-label": `${title}: ${said}`, class: level(known.used / known.limit) }) : null;
    return h("div", { class: "budget-row" }, h("dt", {}, title), h("dd", {}, said), bar ? h("dd", { class: "budget-bar" }, bar) : null);
  });
  return h("div", { class: "budget" },
    h("p", { class: "budget-share" }, h("strong", {}, `${Math.round(share * 100)} %`), " of the nearest limit"),
    h("dl", {}, rows));
}

const level = (share) => (share >= 0.9 ? "bad" : share >= 0.7 ? "warn" : "good");
