/** View of a unified diff, file by file, with line numbers. */

import { add, h } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";

const MOST_LINES = 3000;
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;

/**
 * @param {string} text
 * @returns {Array<{path: string, added: number, removed: number, lines: Array<{kind: string, old: number | null, now: number | null, text: string}>}>}
 */
export function parseDiff(text) {
  const files = [];
  let file = null;
  let [old, now] = [0, 0];
  const begin = (path) => {
    file = { path, added: 0, removed: 0, lines: [] };
    files.push(file);
  };
  const lines = text.replace(/\n$/, "").split("\n");
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    if (line.startsWith("--- ") && lines[at + 1]?.startsWith("+++ ")) {
      const [before, after] = [pathOf(line), pathOf(lines[at + 1])];
      begin(after === "/dev/null" ? before : after);
      at += 1;
      continue;
    }
    const hunk = HUNK.exec(line);
    if (!file && !hunk) continue;
    if (!file) begin("");
    if (hunk) {
      [old, now] = [Number(hunk[1]), Number(hunk[2])];
      file.lines.push({ kind: "hunk", old: null, now: null, text: hunk[3].trim() });
    } else if (line.startsWith("+")) {
      file.added += 1;
      file.lines.push({ kind: "added", old: null, now: now++, text: line.slice(1) });
    } else if (line.startsWith("-")) {
      file.removed += 1;
      file.lines.push({ kind: "removed", old: old++, now: null, text: line.slice(1) });
    } else if (line.startsWith(" ") || line === "") {
      if (file.lines.length) file.lines.push({ kind: "same", old: old++, now: now++, text: line.slice(1) });
    } else if (line.startsWith("\\")) {
      file.lines.push({ kind: "hunk", old: null, now: null, text: line.slice(2) });
    }
  }
  return files;
}

function pathOf(line) {
  const path = line.slice(4).split("\t")[0];
  return path.replace(/^[ab]\//, "");
}

const SIGNS = { added: "+", removed: "−", same: " ", hunk: "" };

/** @param {string} text */
export function diffView(text) {
  const files = parseDiff(text);
  if (!files.length) return h("p", { class: "quiet" }, "No file was changed.");
  let left = MOST_LINES;
  return h("div", { class: "diff" }, files.map((file) => {
    const shown = file.lines.slice(0, Math.max(0, left));
    left -= shown.length;
    return fileView(file, shown);
  }));
}

function fileView({ path, added, removed, lines }, shown) {
  const body = h("div", { class: "diff-lines", tabindex: "0", role: "group", "aria-label": `Changes in ${path}` });
  add(body, shown.map(({ kind, old, now, text }) => h(
    "div", { class: `diff-line ${kind}` },
    h("span", { class: "diff-number" }, old ?? ""), h("span", { class: "diff-number" }, now ?? ""),
    h("span", { class: "diff-sign" }, SIGNS[kind]), h("span", { class: "diff-text" }, text || " "),
  )));
  const rest = lines.length - shown.length;
  return h(
    "details", { class: "diff-file", open: true },
    h("summary", {}, icon("chevron"), h("code", {}, path),
      h("span", { class: "diff-count" }, h("span", { class: "plus" }, `+${added}`), h("span", { class: "minus" }, `−${removed}`))),
    body, rest ? h("p", { class: "quiet" }, `${plural(rest, "more line")} not shown`) : null,
  );
}
