/**
 * Builds elements. Text is always text: this page never parses HTML, so that the output of an
 * untrusted program cannot become part of it.
 */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected", "multiple"]);

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes `on…` are listeners; null and false are left out
 */
function adorn(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value ?? false;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
}

/** @param {Element} element @param {Child[]} children */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  adorn(element, attributes);
  return add(element, ...children);
}

/** Create an SVG element. @returns {any} */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  adorn(element, attributes);
  return add(element, ...children);
}

/** Replace all children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

const nameOf = (element) => `${element.tagName} ${element.getAttribute("href") ?? element.getAttribute("aria-label") ?? element.textContent}`;

/** Replace all children, and keep the focus on the element with the same name. */
export function refill(element, ...children) {
  const held = element.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  fill(element, ...children);
  if (held) [...element.querySelectorAll("a, button")].find((each) => nameOf(each) === held)?.focus();
}

let count = 0;
/** Return an id that no other element has. */
export const fresh = (stem) => `${stem}-${++count}`;

/** Limit calls to one per frame, with the last arguments. */
export function perFrame(act) {
  let waiting = null;
  return (...words) => {
    const first = waiting === null;
    waiting = words;
    if (first) {
      requestAnimationFrame(() => {
        const latest = waiting;
        waiting = null;
        act(...latest);
      });
    }
  };
}
