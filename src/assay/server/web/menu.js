/** Button that opens a short list of actions; arrow keys move in it, Escape closes it. */

import { fresh, h } from "./dom.js";
import { icon } from "./icons.js";

/** @param {string} label @param {HTMLElement[]} buttons */
export function menu(label, buttons, glyph = "more") {
  const id = fresh("menu");
  const list = h("div", { class: "menu-list", id, role: "menu", "aria-label": label, hidden: true }, buttons);
  const opener = h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, "aria-haspopup": "menu", "aria-expanded": "false", "aria-controls": id }, icon(glyph));
  const box = h("div", { class: "menu" }, opener, list);
  const show = (open) => {
    list.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
    if (open) buttons[0].focus();
  };
  opener.addEventListener("click", () => show(list.hidden));
  list.addEventListener("click", () => show(false));
  box.addEventListener("focusout", (event) => {
    if (!box.contains(event.relatedTarget)) show(false);
  });
  box.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      show(false);
      opener.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      const at = buttons.indexOf(document.activeElement);
      buttons[(at + step + buttons.length) % buttons.length].focus();
    }
  });
  return box;
}

export function menuButton(glyph, text, act, kind = "") {
  return h("button", { type: "button", role: "menuitem", class: `menu-item ${kind}`, onclick: act }, icon(glyph), text);
}
