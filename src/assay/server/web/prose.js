/** Markdown as elements, built one by one. Links lead only to http and https; no images are loaded. */

import { add, fill, h } from "./dom.js";
import { codeBlock, tableOf } from "./blocks.js";
import { parseInline, safeAddress } from "./inline.js";
import { outlined, parseBlocks } from "./markdown.js";

const LONGEST = 200_000;
const TAGS = { strong: "strong", em: "em", del: "del" };

function inline(parts) {
  return parts.map((part) => {
    if (typeof part === "string") return withBreaks(part);
    if (part.kind === "code") return h("code", {}, part.text);
    if (part.kind === "break") return h("br");
    if (part.kind === "link") return link(part.href, inline(part.children));
    // An external image would reveal that it was viewed: only its address is shown.
    if (part.kind === "image") return link(part.href, [part.text || part.href]);
    return h(TAGS[part.kind], {}, inline(part.children));
  });
}

function withBreaks(text) {
  return text.split(/ {2,}\n/).flatMap((line, index) => (index ? [h("br"), line] : [line]));
}

function link(address, children) {
  const safe = safeAddress(address);
  if (!safe) return h("span", { class: "dead-link", title: "Only http and https links can be opened." }, children);
  return h("a", { href: safe, rel: "noopener noreferrer nofollow", target: "_blank" }, children);
}

const text = (source) => inline(parseInline(source));

const block = (look) => (each) => blockOf(each, look);

function blockOf(each, look) {
  switch (each.kind) {
    case "heading":
      return h(`h${Math.min(6, look.first + each.depth)}`, { class: `level-${each.level}` }, text(each.text));
    case "rule":
      return h("hr");
    case "code":
      return codeBlock(each.text, each.language, { tail: look.note ? h("span", {}, look.note) : null });
    case "quote":
      return h("blockquote", {}, each.blocks.map(block(look)));
    case "list":
      return list(each, look);
    case "table":
      return tableOf({ head: each.head.map(text), rows: each.rows.map((row) => row.map(text)), align: each.align });
    default:
      return h("p", {}, text(each.text));
  }
}

function list({ ordered, start, loose, items }, look) {
  const made = items.map(({ done, blocks }) => {
    const tight = !loose && blocks[0]?.kind === "paragraph";
    const inside = tight ? [text(blocks[0].text), blocks.slice(1).map(block(look))] : blocks.map(block(look));
    const box = done === null ? null : h("input", { type: "checkbox", checked: done, disabled: true, "aria-label": done ? "done" : "to do" });
    return h("li", { class: box ? "task" : null }, box, inside);
  });
  return ordered ? h("ol", { start: start === 1 ? null : start }, made) : h("ul", {}, made);
}

/** @typedef {{first?: number, note?: string}} Look level of the first heading; note for code */

/** @param {string} source @param {Look} [look] @returns {HTMLElement} */
export function prose(source, look) {
  return new Prose(look).show(source).element;
}

/** Growing text: unchanged blocks keep their elements. */
export class Prose {
  #sources = [];
  #look;

  /** @param {Look} [look] */
  constructor({ first = 2, note = "" } = {}) {
    this.#look = { first, note };
    this.element = h("div", { class: "prose" });
  }

  show(source) {
    const blocks = outlined(parseBlocks(source.slice(0, LONGEST)));
    const sources = blocks.map((each) => each.source);
    let same = 0;
    while (same < sources.length && sources[same] === this.#sources[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    add(this.element, blocks.slice(same).map(block(this.#look)));
    this.#sources = sources;
    if (source.length > LONGEST) this.element.append(this.#rest(source));
    return this;
  }

  /** Text that is too long to format is available on request, unchanged. */
  #rest(source) {
    const button = h("button", { type: "button", class: "button small" }, "Show the rest as plain text");
    const place = h("div", {}, button);
    button.addEventListener("click", () => fill(place, h("pre", { class: "plain-rest" }, source.slice(LONGEST))));
    return place;
  }
}
