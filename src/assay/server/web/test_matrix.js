/**
 * The test matrix as a picture: a row for each test, a column for each attempt. Shapes show how a
 * test ended, so that colors are not needed; tests that were fixed or that regressed are framed.
 */

import { tableOf } from "./blocks.js";
import { h, s } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";

const CELL = 30;
const HEAD = 26;
const LETTER = 7.3;
const MOST_ROWS = 80;

/** @typedef {{tests: string[], attempts: number[], cells: Array<Array<string | null>>}} Lattice cells by test, then attempt */

/** How the result of a test changed from one attempt to the next. Pure. */
export function turnOf(before, now) {
  if (before === undefined || before === null || now === null) return "";
  if (now === "passed" && before !== "passed") return "gain";
  return before === "passed" && now !== "passed" ? "loss" : "";
}

/** Cells may come by attempt or by test: convert them to rows by test. Pure. */
export function byTest({ tests, attempts, cells }) {
  const straight = cells.length === tests.length && cells.every((row) => row.length === attempts.length);
  const turned = tests.map((_, test) => attempts.map((__, attempt) => cells[attempt]?.[test] ?? null));
  return { tests, attempts, cells: straight ? cells : turned };
}

/** Shorten a test's name to its end, which is more specific than its beginning. Pure. */
export function shortName(test, most) {
  if (test.length <= most) return test;
  const own = test.includes("::") ? test.slice(test.lastIndexOf("::") + 2) : test;
  return own.length <= most ? own : `…${own.slice(own.length - most + 1)}`;
}

function shape(status, x, y) {
  const put = (tag, attributes) => s(tag, { ...attributes, transform: `translate(${x} ${y})` });
  switch (status) {
    case "passed":
      return put("circle", { r: "7", class: "l-passed" });
    case "failed":
      return put("path", { d: "M-5.5-5.5 5.5 5.5M5.5-5.5-5.5 5.5", class: "l-failed" });
    case "error":
      return put("path", { d: "M0-7 7.5 6h-15z", class: "l-error" });
    case "skipped":
      return put("path", { d: "M-6 0h12", class: "l-skipped" });
    default:
      return put("circle", { r: "1.6", class: "l-none" });
  }
}

const WORDS = { gain: ", fixed", loss: ", regressed" };

function row(test_matrix, test, width, y) {
  const { tests, attempts, cells } = test_matrix;
  const parts = [s("text", { class: "l-name", x: String(width - 10), y: String(y + 4), "text-anchor": "end" },
    shortName(tests[test], Math.floor((width - 16) / LETTER)), s("title", {}, tests[test]))];
  attempts.forEach((attempt, column) => {
    const status = cells[test][column];
    const turn = turnOf(cells[test][column - 1], status);
    const x = width + column * CELL + CELL / 2;
    const title = s("title", {}, `${tests[test]}\nattempt ${attempt}: ${status ?? "not reported"}${WORDS[turn] ?? ""}`);
    const frame = s("rect", { class: `l-cell ${turn}`, x: String(x - 12), y: String(y - 12), width: "24", height: "24", rx: "6" });
    parts.push(s("g", { class: "l-spot" }, title, frame, shape(status, x, y)));
  });
  return s("g", {}, parts);
}

function picture(test_matrix, available) {
  const { tests, attempts } = test_matrix;
  const longest = Math.max(...tests.map((test) => test.length)) * LETTER + 20;
  const width = Math.max(110, Math.min(longest, available - attempts.length * CELL - 8));
  const height = HEAD + tests.length * CELL + 4;
  const total = Math.ceil(width + attempts.length * CELL + 8);
  const heads = attempts.map((attempt, column) =>
    s("text", { class: "l-head", x: String(width + column * CELL + CELL / 2), y: "16", "text-anchor": "middle" }, String(attempt)));
  const rows = tests.map((_, test) => row(test_matrix, test, width, HEAD + test * CELL + CELL / 2));
  return s("svg", {
    class: "test_matrix", width: String(total), height: String(height), viewBox: `0 0 ${total} ${height}`,
    role: "img", "aria-label": summary(test_matrix),
  }, heads, rows);
}

/** Summarize the matrix in a sentence. Pure. @param {Lattice} test_matrix */
export function summary({ tests, attempts, cells }) {
  const last = cells.filter((row) => row.at(-1) === "passed").length;
  const turns = cells.flatMap((row) => row.map((status, column) => turnOf(row[column - 1], status)));
  const [fixed, regressed] = ["gain", "loss"].map((kind) => turns.filter((turn) => turn === kind).length);
  const changes = fixed || regressed ? `; ${fixed} fixed and ${regressed} regressed on the way` : "";
  return `${plural(tests.length, "test")}, ${plural(attempts.length, "attempt")}: ${last} of ${tests.length} passed in the last one${changes}`;
}

const LEGEND = [["passed", "passed"], ["failed", "failed"], ["error", "error"], ["skipped", "skipped"], [null, "not reported"]];

function legend() {
  const sample = (status) => s("svg", { width: "18", height: "18", viewBox: "-9 -9 18 18", "aria-hidden": "true" }, shape(status, 0, 0));
  const frame = (kind) => s("svg", { width: "18", height: "18", viewBox: "-9 -9 18 18", "aria-hidden": "true" },
    s("rect", { class: `l-cell ${kind}`, x: "-8", y: "-8", width: "16", height: "16", rx: "4" }));
  return h("ul", { class: "legend" },
    LEGEND.map(([status, name]) => h("li", {}, sample(status), name)),
    h("li", {}, frame("gain"), "fixed"), h("li", {}, frame("loss"), "regressed"));
}

/** With many tests, return those that failed most often. Pure. */
export function chosenRows(test_matrix, most) {
  if (test_matrix.tests.length <= most) return test_matrix;
  const order = test_matrix.tests.map((_, index) => index);
  const doubt = (index) => test_matrix.cells[index].filter((status) => status !== "passed").length;
  const kept = order.sort((one, other) => doubt(other) - doubt(one) || one - other).slice(0, most);
  return { ...test_matrix, tests: kept.map((index) => test_matrix.tests[index]), cells: kept.map((index) => test_matrix.cells[index]) };
}

/** @param {Lattice} given @param {AbortSignal} signal */
export function testMatrixView(given, signal) {
  const test_matrix = byTest(given);
  if (!test_matrix.tests.length || !test_matrix.attempts.length) {
    return h("p", { class: "quiet" }, "No test has run yet. Each attempt adds a column here.");
  }
  const shown = chosenRows(test_matrix, MOST_ROWS);
  const box = h("div", { class: "test_matrix-box", tabindex: "0", role: "group", "aria-label": "Test results, as a picture" });
  const watcher = new ResizeObserver(() => box.replaceChildren(picture(shown, box.clientWidth)));
  watcher.observe(box);
  signal.addEventListener("abort", () => watcher.disconnect());
  const hidden = test_matrix.tests.length - shown.tests.length;
  const table = h("details", { class: "as-table" }, h("summary", {}, icon("chevron"), "As a table"),
    tableOf({ head: ["Test", ...test_matrix.attempts.map((attempt) => `Attempt ${attempt}`)], index: 1,
      rows: test_matrix.tests.map((test, index) => [test, ...test_matrix.cells[index].map((status) => status ?? "—")]) }));
  return h("div", {}, h("p", { class: "test_matrix-words" }, summary(test_matrix)), box,
    hidden ? h("p", { class: "quiet" }, `${plural(hidden, "more test")} in the table below`) : null, legend(), table);
}
