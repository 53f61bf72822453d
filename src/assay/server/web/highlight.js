/** Syntax-highlighted code as elements. Code that is too long or in an unknown language stays plain. */

import { h } from "./dom.js";
import { LANGUAGES } from "./languages.js";

const LONGEST = 60_000;

/**
 * Split code into tokens. Joined again, the texts are exactly the code.
 *
 * @param {string} code
 * @param {string} language
 * @returns {Array<[string, string]>} kind and text; the kind of plain text is empty
 */
export function tokenise(code, language) {
  const name = language.toLowerCase();
  const spoken = Object.hasOwn(LANGUAGES, name) ? LANGUAGES[name] : null;
  if (!spoken || code.length > LONGEST) return [["", code]];
  const tokens = [];
  let plain = "";
  let at = 0;
  const settle = () => {
    if (plain) tokens.push(["", plain]);
    plain = "";
  };
  while (at < code.length) {
    const [kind, text] = next(code, at, spoken);
    at += text.length;
    if (!kind) plain += text;
    else {
      settle();
      tokens.push([kind, text]);
    }
  }
  settle();
  return tokens;
}

function next(code, at, spoken) {
  for (const [kind, rule] of spoken.rules) {
    rule.lastIndex = at;
    const text = rule.exec(code)?.[0];
    if (text) return [kind === "name" ? kindOfName(text, code, at, spoken) : kind, text];
  }
  return ["", String.fromCodePoint(code.codePointAt(at))];
}

function kindOfName(text, code, at, spoken) {
  const word = spoken.fold ? text.toLowerCase() : text;
  if (spoken.keywords.has(word)) return "keyword";
  if (spoken.constants.has(word)) return "constant";
  if (spoken.builtins.has(word)) return "builtin";
  return code[at + text.length] === "(" ? "call" : "";
}

/** Return the tokens as nodes for a `code` element. */
export function highlighted(code, language) {
  const piece = document.createDocumentFragment();
  for (const [kind, text] of tokenise(code, language)) {
    piece.append(kind ? h("span", { class: `t-${kind}` }, text) : text);
  }
  return piece;
}
