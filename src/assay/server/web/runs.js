/** View of all runs, and the form for a new one. */

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, oneLine } from "./format.js";
import { icon } from "./icons.js";
import { problemBox } from "./notices.js";
import { runForm } from "./run_form.js";
import { sidebarButton } from "./signals.js";
import { isOver, statusBadge } from "./statuses.js";

const AGAIN_MS = 4000;

export function showRuns(main, _, signal) {
  document.title = "Runs · Assay";
  const list = h("div", { class: "waiting", "aria-busy": "true" });
  fill(main, h(
    "section", { class: "page" },
    h("header", { class: "head" }, sidebarButton(), h("h1", { class: "head-title" }, "Runs")),
    h("div", { class: "page-body wide" }, runForm(), h("section", { class: "run-list", "aria-label": "All runs" }, list)),
  ));
  load(list, signal);
  return {};
}

async function load(place, signal) {
  try {
    const { runs } = await get("v1/runs", signal);
    fill(place, runs.length ? h("ul", { class: "rows" }, runs.map(row)) : blank());
    if (runs.some((run) => !isOver(run.status))) setTimeout(() => !signal.aborted && load(place, signal), AGAIN_MS);
  } catch (error) {
    if (signal.aborted) return;
    fill(place, problemBox(error, () => load(place, signal)));
  }
  place.classList.remove("waiting");
  place.removeAttribute("aria-busy");
}

function row(run) {
  const facts = [ago(run.created_at), run.model].filter(Boolean).join(" · ");
  return h("li", {}, h("a", { class: "row", href: `#/r/${run.id}` },
    h("span", { class: "row-words" }, h("span", { class: "row-title" }, oneLine(run.goal, 200)), h("span", { class: "quiet" }, facts)),
    statusBadge(run.status, run.grade)));
}

const blank = () => h("div", { class: "blank" }, icon("flag"),
  h("p", {}, h("strong", {}, "No runs yet.")),
  h("p", {}, "A run takes a goal and a check command. Assay writes code and tests it in a sandbox until an independent check accepts it. You get the changes and a certificate."));
