/**
 * Inline Markdown: code, emphasis, links. Pure: text in, a tree of plain values out. A mark without
 * its counterpart is text, and the search for counterparts takes linear time.
 */

/** @typedef {string | {kind: string, children?: Inline[], text?: string, href?: string}} Inline */

const DEEPEST = 6;
const ESCAPABLE = /[\\`*_{}[\]()#+\-.!|~<>"']/;
const ADDRESS = /https?:\/\/[^\s<>"'`\])}]+/y;
const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

/** Only these are links; other addresses are shown as text. */
export function safeAddress(address) {
  try {
    const url = new URL(address.trim());
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

/** @param {string} text @returns {Inline[]} */
export function parseInline(text, depth = 0) {
  const parts = [];
  const missing = new Set();
  let plain = "";
  let at = 0;
  const take = (part, length) => {
    if (plain) parts.push(plain);
    plain = "";
    parts.push(part);
    at += length;
  };
  while (at < text.length) {
    const found = depth < DEEPEST ? partAt(text, at, depth, missing) : null;
    if (found?.part) take(found.part, found.length);
    else {
      const length = found?.length ?? 1;
      plain += found?.text ?? text[at];
      at += length;
    }
  }
  if (plain) parts.push(plain);
  return parts;
}

function partAt(text, at, depth, missing) {
  const here = text[at];
  if (here === "\\") return escaped(text, at);
  if (here === "`") return codeAt(text, at, missing);
  if (here === "[" || (here === "!" && text[at + 1] === "[")) return linkAt(text, at, depth, missing);
  if (here === "<" || (here === "h" && !isWord(text[at - 1]))) return bareAddressAt(text, at);
  if (here === "*" || here === "_" || here === "~") return emphasisAt(text, at, depth, missing);
  return null;
}

function escaped(text, at) {
  if (text[at + 1] === "\n") return { part: { kind: "break" }, length: 2 };
  return ESCAPABLE.test(text[at + 1] ?? "") ? { text: text[at + 1], length: 2 } : null;
}

function codeAt(text, at, missing) {
  let ticks = 1;
  while (text[at + ticks] === "`") ticks += 1;
  const fence = "`".repeat(ticks);
  const end = counterpart(text, fence, at + ticks, missing);
  if (end < 0) return { text: fence, length: ticks };
  const inside = text.slice(at + ticks, end).replace(/\n/g, " ");
  const code = /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside;
  return { part: { kind: "code", text: code }, length: end + ticks - at };
}

/** Find the closing mark; after one failed search, do not search again. */
function counterpart(text, mark, from, missing) {
  if (missing.has(mark)) return -1;
  const end = text.indexOf(mark, from);
  if (end < 0) missing.add(mark);
  return end;
}

function linkAt(text, at, depth, missing) {
  const start = text[at] === "!" ? at + 1 : at;
  const middle = counterpart(text, "](", start + 1, missing);
  if (middle < 0 || text.slice(start + 1, middle).includes("\n\n")) return null;
  const label = text.slice(start + 1, middle);
  if (label.includes("[")) return null;
  const end = addressEnd(text, middle + 2);
  if (end < 0) return null;
  const target = text.slice(middle + 2, end).trim().replace(/\s+["'(][^]*$/, "").replace(/^<|>$/g, "");
  const length = end + 1 - at;
  if (start !== at) return { part: { kind: "image", text: label, href: target }, length };
  return { part: { kind: "link", href: target, children: parseInline(label, depth + 1) }, length };
}

/** Parentheses within an address must balance, up to the line's end or a maximum length. */
function addressEnd(text, from) {
  let open = 0;
  for (let at = from; at < text.length && at - from < 2000; at += 1) {
    if (text[at] === "\n") return -1;
    if (text[at] === "(") open += 1;
    else if (text[at] === ")") {
      if (open === 0) return at;
      open -= 1;
    }
  }
  return -1;
}

function bareAddressAt(text, at) {
  const angled = text[at] === "<";
  ADDRESS.lastIndex = angled ? at + 1 : at;
  const found = ADDRESS.exec(text)?.[0];
  if (!found) return null;
  const address = angled ? found : found.replace(/[.,;:!?]+$/, "");
  if (angled && text[at + 1 + found.length] !== ">") return null;
  const part = { kind: "link", href: address, children: [address] };
  return { part, length: address.length + (angled ? 2 : 0) };
}

const isWord = (letter) => letter !== undefined && /[\p{L}\p{N}_]/u.test(letter);

function emphasisAt(text, at, depth, missing) {
  const [mark, kind] = MARKS.find(([each]) => text.startsWith(each, at)) ?? [];
  if (!mark) return null;
  const first = text[at + mark.length];
  const within = mark.startsWith("_") && isWord(text[at - 1]);
  if (first === undefined || /\s/.test(first) || within) return { text: mark, length: mark.length };
  const end = closing(text, mark, at + mark.length, missing);
  if (end < 0) return { text: mark, length: mark.length };
  const children = parseInline(text.slice(at + mark.length, end), depth + 1);
  return { part: { kind, children }, length: end + mark.length - at };
}

function closing(text, mark, from, missing) {
  let end = counterpart(text, mark, from + 1, missing);
  // `*` inside `**`, a mark after a space, and `_` within a word do not close.
  for (let tries = 0; end >= 0 && tries < 40; tries += 1) {
    const doubled = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    const within = mark.startsWith("_") && isWord(text[end + mark.length]);
    if (!doubled && !within && !/\s/.test(text[end - 1])) return end;
    end = text.indexOf(mark, end + (doubled ? 2 : 1));
  }
  return -1;
}
