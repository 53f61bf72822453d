/** Attempts of a run, each with its replies, tools, changes, tests and verdict. */

import { foldable } from "./blocks.js";
import { diffView } from "./diff.js";
import { fill, h, perFrame } from "./dom.js";
import { oneLine, plural, seconds } from "./format.js";
import { icon } from "./icons.js";
import { Prose, prose } from "./prose.js";
import { gradeWord, actionName } from "./statuses.js";

/** Headings in replies are below the heading of their section. */
const LOOK = { first: 4 };
const LONGEST_LIVE = 12_000;
const MOST_FAILURES = 12;

export class Attempt {
  #live = null;
  #text = "";

  constructor(number, action = "") {
    this.number = number;
    this.state = h("span", { class: "attempt-state live" }, "Running");
    this.about = h("span", { class: "quiet cut" }, number ? actionName(action) : "Before the first attempt");
    this.body = h("div", { class: "attempt-body" });
    this.element = h("details", { class: "attempt" },
      h("summary", {}, icon("chevron"), h("strong", {}, number ? `Attempt ${number}` : "Planning"), this.about, this.state), this.body);
  }

  says(word, kind) {
    this.state.textContent = word;
    this.state.className = `attempt-state ${kind}`;
  }

  arrived(text, program) {
    if (this.#live?.program !== program) this.#begin(program);
    this.#text = (this.#text + text).slice(-LONGEST_LIVE);
    this.#live.draw();
  }

  replied({ text, calls }) {
    this.#settle();
    const asked = calls.length ? h("p", { class: "quiet" }, `calls ${calls.join(", ")}`) : null;
    if (text.trim()) this.#put("Reply", foldable(h("div", {}, prose(text, LOOK)), text));
    if (asked) this.body.append(asked);
  }

  tool({ tool, summary, answer, failed }) {
    this.#settle();
    this.body.append(h("details", { class: `step tool ${failed ? "failed" : ""}` },
      h("summary", {}, icon("chevron"), h("code", {}, tool), h("span", { class: "quiet cut" }, oneLine(summary, 100))),
      h("pre", { class: "output-text", tabindex: "0" }, answer)));
  }

  changed({ changes, diff }) {
    this.#settle();
    this.#put(plural(changes.length, "file changed", "files changed"), diffView(diff));
  }

  screened({ findings, blocked }) {
    if (!findings.length) return;
    this.#put(blocked ? "Screening: not run" : "Screening",
      h("ul", { class: "findings" }, findings.map(({ path, line, explanation }) => h("li", {}, h("code", {}, `${path}:${line}`), " ", explanation))));
  }

  executed({ reports }) {
    this.#settle();
    const tests = reports.flatMap((report) => report.tests);
    const passed = tests.filter((test) => test.status === "passed").length;
    if (tests.length) this.says(`${passed} of ${tests.length}`, reports.every((report) => report.passed) && passed ? "good" : "bad");
    this.#put("Tests", reports.map(reportView));
  }

  verified({ verdict }) {
    this.#settle();
    this.says(verdict.accepted ? gradeWord(verdict.grade) : "Rejected", verdict.accepted ? "good" : "bad");
    this.#put("Independent check", h("p", { class: verdict.accepted ? "verdict good" : "verdict bad" }, icon(verdict.accepted ? "seal" : "warning"), verdict.reason),
      verdict.findings.length ? h("ul", { class: "findings" }, verdict.findings.map(({ severity, explanation }) => h("li", {}, h("strong", {}, severity), " ", explanation))) : null);
  }

  rolledBack({ to_attempt: to, broke }) {
    this.#put("Rolled back", h("p", {}, `${plural(broke.length, "test")} regressed compared to attempt ${to}. The state of attempt ${to} is kept.`));
  }

  reflected({ lesson, next_action: next }) {
    this.#settle();
    this.#put("Lesson", prose(lesson, LOOK), next ? h("p", { class: "quiet" }, `Next: ${actionName(next)}.`) : null);
  }

  checks({ paths, text }) {
    this.#put("Checks written first", h("p", { class: "quiet" }, paths.join(", ")), foldable(h("pre", { class: "output-text", tabindex: "0" }, text), text));
  }

  #put(title, ...inside) {
    this.body.append(h("section", { class: "attempt-part" }, h("h3", {}, title), inside));
  }

  #begin(program) {
    this.#settle();
    const text = program ? h("pre", { class: "output-text", tabindex: "0" }) : null;
    const words = program ? null : new Prose(LOOK);
    const draw = perFrame(() => (program ? fill(text, this.#text) : words.show(this.#text)));
    const element = h("div", { class: "live" }, text ?? words.element);
    this.body.append(element);
    this.#live = { program, draw, element };
  }

  #settle() {
    this.#live?.element.remove();
    this.#live = null;
    this.#text = "";
  }
}

function reportView({ command, passed, tests, explanation, output, duration_s: took, known_failures: known = [] }) {
  const failures = tests.filter((test) => (test.status === "failed" || test.status === "error") && !known.includes(test.id));
  const told = failures.slice(0, MOST_FAILURES).map(({ id, message, detail }) => h("li", {}, h("code", {}, id), message ? h("p", {}, message) : null,
    detail ? h("details", {}, h("summary", {}, "Details"), h("pre", { class: "output-text", tabindex: "0" }, detail)) : null));
  return h("div", { class: "report" },
    h("p", {}, icon(passed ? "check" : "warning"), h("code", {}, command), h("span", { class: "quiet" }, ` ${seconds(took)}`)),
    explanation ? h("p", {}, explanation) : null,
    known.length ? h("p", { class: "quiet" }, `Failed before in the same way: ${known.join(", ")}`) : null,
    told.length ? h("ul", { class: "failures" }, told) : null,
    failures.length > MOST_FAILURES ? h("p", { class: "quiet" }, `${plural(failures.length - MOST_FAILURES, "more failure")}`) : null,
    !tests.length && output ? foldable(h("pre", { class: "output-text", tabindex: "0" }, output), output) : null);
}
