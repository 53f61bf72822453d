/**
 * Markdown blocks: headings, lists, quotes, tables, fenced code. Pure: text in, a list of plain
 * values out, each with its source, so that a view can skip unchanged blocks. HTML is not
 * supported: tags are text.
 */

import { parseInline } from "./inline.js";

/** @typedef {{kind: string, source: string, [name: string]: any}} Block */

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])([ \t]+)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const DEEPEST = 8;

/** @param {string} text @returns {Block[]} */
export function parseBlocks(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const { length, ...block } = blockAt(lines, at, depth);
    blocks.push({ ...block, source: lines.slice(at, at + length).join("\n") });
    at += length;
  }
  return blocks;
}

/**
 * Set the depth of each heading relative to the first one, so that no level is skipped.
 *
 * @param {Block[]} blocks
 */
export function outlined(blocks, open = []) {
  for (const each of blocks) {
    if (each.kind === "heading") {
      while (open.length && open.at(-1) >= each.level) open.pop();
      each.depth = open.length;
      open.push(each.level);
    }
    for (const inner of each.items ?? [each]) if (inner.blocks) outlined(inner.blocks, open);
  }
  return blocks;
}

/** Text of the blocks without marks, in one line. @param {Block[]} blocks @returns {string} */
export function plainText(blocks) {
  const said = ({ kind, text = "", blocks: inner, items, head, rows }) => {
    if (kind === "code") return `Code: ${text}.`;
    if (kind === "table") return [head, ...rows].map((row) => `${row.map(plainInline).join(", ")}.`).join(" ");
    if (items) return items.map((item) => plainText(item.blocks)).join("; ");
    return inner ? plainText(inner) : plainInline(text);
  };
  return blocks.map(said).join(" ").replace(/\s+/g, " ").trim();
}

function plainInline(text) {
  const said = (part) => (typeof part === "string" ? part : part.text ?? (part.children ?? []).map(said).join(""));
  return parseInline(text).map(said).join("");
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fencedAt(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2], length: 1 };
  if (RULE.test(line)) return { kind: "rule", length: 1 };
  if (depth < DEEPEST && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return listAt(lines, at, depth);
  if (beginsTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at);
}

function fencedAt(lines, at) {
  const [, fence, language] = FENCE.exec(lines[at]);
  const indent = /^ */.exec(lines[at])[0].length;
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], fence)) end += 1;
  const inside = lines.slice(at + 1, end);
  const text = inside.map((each) => each.replace(new RegExp(`^ {0,${indent}}`), "")).join("\n");
  return { kind: "code", language, text, open: end >= lines.length, length: Math.min(end + 1, lines.length) - at };
}

function closes(line, fence) {
  const marks = line.trim();
  return marks.length >= fence.length && marks === fence[0].repeat(marks.length);
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inside = lines.slice(at, end).map((each) => each.replace(QUOTE, "")).join("\n");
  return { kind: "quote", blocks: parseBlocks(inside, depth + 1), length: end - at };
}

function listAt(lines, at, depth) {
  const [, margin, first] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first);
  const items = [];
  let end = at;
  let loose = false;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || /\d/.test(found[2]) !== ordered || found[1].length > margin.length + 1 || RULE.test(lines[end])) break;
    const inner = found[1].length + found[2].length + Math.min(found[3].length, 4);
    const own = [found[4]];
    end += 1;
    for (; end < lines.length; end += 1) {
      const blank = lines[end].trim() === "";
      const indented = /^ */.exec(lines[end])[0].length >= Math.min(inner, found[1].length + 2);
      if (blank && !continues(lines, end, Math.min(inner, found[1].length + 2))) break;
      if (!blank && !indented && (ITEM.test(lines[end]) || startsBlock(lines[end]))) break;
      if (!blank && !indented && own.at(-1) === "") break;
      loose ||= blank;
      own.push(lines[end].replace(new RegExp(`^ {0,${inner}}`), ""));
    }
    items.push(itemOf(own.join("\n"), depth));
    while (end < lines.length && lines[end].trim() === "" && isSibling(lines[end + 1], margin, ordered)) end += 1;
  }
  const start = ordered ? Number.parseInt(first, 10) : 1;
  return { kind: "list", ordered, start, loose, items, length: end - at };
}

function itemOf(text, depth) {
  const box = /^\[([ xX])\][ \t]+/.exec(text);
  const rest = box ? text.slice(box[0].length) : text;
  return { done: box ? box[1] !== " " : null, blocks: parseBlocks(rest, depth + 1) };
}

/** Whether the item continues after this empty line. */
function continues(lines, at, inner) {
  const next = lines[at + 1];
  return next !== undefined && next.trim() !== "" && /^ */.exec(next)[0].length >= inner;
}

function isSibling(line, margin, ordered) {
  const found = line === undefined ? null : ITEM.exec(line);
  return Boolean(found) && found[1].length === margin.length && /\d/.test(found[2]) === ordered;
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line);

/** A row, followed by a divider with as many columns. */
function beginsTable(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !lines[at].includes("|") || !DIVIDER.test(next) || !next.includes("-")) return false;
  return cellsOf(lines[at]).length === cellsOf(next).length;
}

function tableAt(lines, at) {
  const head = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left");
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|") && lines[end].trim() !== ""; end += 1) {
    const cells = cellsOf(lines[end]);
    rows.push(head.map((_, column) => cells[column] ?? ""));
  }
  return { kind: "table", head, align, rows, length: end - at };
}

/** Split at bars that are neither escaped nor in code. */
export function cellsOf(line) {
  const cells = [];
  let cell = "";
  let code = false;
  const row = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  for (let at = 0; at < row.length; at += 1) {
    if (row[at] === "`") code = !code;
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|" && !code) {
      cells.push(cell.trim());
      cell = "";
    } else cell += row[at];
  }
  cells.push(cell.trim());
  return cells;
}

function paragraphAt(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines[end]) && !interrupts(lines, end)) end += 1;
  return { kind: "paragraph", text: lines.slice(at, end).map((each) => each.trimStart()).join("\n"), length: end - at };
}

function interrupts(lines, at) {
  const item = ITEM.exec(lines[at]);
  return (item && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2])) && item[4] !== "") || beginsTable(lines, at);
}
