/** Every event of a run, one line each. */

import { h } from "./dom.js";
import { actionName } from "./statuses.js";
import { icon } from "./icons.js";
import { oneLine, plural, usageLine } from "./format.js";

const MOST = 2000;

const SENTENCES = {
  run_started: ({ model, backend, isolation }) => `started with ${model}, programs ${isolation} by ${backend}`,
  run_resumed: () => "resumed",
  planned: ({ steps, checks }) => `${plural(steps.length, "step")}; check command: ${checks.join(", ") || "to be written"}`,
  checks_written: ({ paths }) => paths.join(", "),
  attempt_started: ({ attempt, action }) => `attempt ${attempt}, ${actionName(action).toLowerCase()}`,
  model_replied: ({ attempt, text, calls, usage, cut_off: cutOff }) => `attempt ${attempt}: ${cutOff ? "cut off; " : ""}${calls.join(", ") || oneLine(text, 80)} (${usageLine(usage)})`,
  tool_answered: ({ tool, summary }) => `${tool} ${summary}`,
  files_changed: ({ changes }) => changes.map(({ path, kind }) => `${path} ${kind}`).join(", "),
  screened: ({ findings, blocked }) => `${plural(findings.length, "finding")}${blocked ? ", blocked" : ""}`,
  executed: ({ reports }) => reports.map(({ command, passed }) => `${command}: ${passed ? "passed" : "not passed"}`).join("; "),
  verified: ({ verdict }) => verdict.reason,
  rolled_back: ({ attempt, to_attempt: to }) => `from attempt ${attempt} to ${to}`,
  reflected: ({ lesson, next_action: next }) => `${oneLine(lesson, 100)}${next ? `; next: ${actionName(next).toLowerCase()}` : ""}`,
  budget_used: ({ share, usage }) => `${Math.round(share * 100)} %, ${usageLine(usage)}`,
  run_ended: ({ outcome }) => outcome.reason,
};

export class RunLog {
  constructor() {
    this.count = h("span", { class: "quiet" }, "none yet");
    this.list = h("ol", { class: "events" });
    this.element = h("details", { class: "events-box" }, h("summary", {}, icon("chevron"), "Log ", this.count),
      h("div", { class: "events-scroll", tabindex: "0", role: "group", "aria-label": "Events, one per line" }, this.list));
  }

  take(kind, data) {
    if (this.list.children.length >= MOST) this.list.firstChild.remove();
    let said = "";
    try {
      said = SENTENCES[kind]?.(data) ?? "";
    } catch {
      // An unknown event of a later version: show only its name.
    }
    this.list.append(h("li", {}, h("code", {}, kind), " ", oneLine(said, 220)));
    this.count.textContent = `(${plural(this.list.children.length, "event")})`;
  }
}
