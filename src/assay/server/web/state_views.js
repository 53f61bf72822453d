/** Views for errors: nothing of that name, or no key for it. */

import { isSignedOut, signIn } from "./api.js";
import { fill, h } from "./dom.js";
import { icon } from "./icons.js";
import { askForKey, keyFields } from "./key_dialog.js";
import { openSidebar, sidebarButton } from "./signals.js";

/** @param {string} title @param {...any} inside */
function stateView(title, glyph, ...inside) {
  document.title = `${title} · Assay`;
  return h(
    "section", { class: "page state-view" },
    h("header", { class: "head bare" }, sidebarButton()),
    h("div", { class: "state-body" }, icon(glyph), h("h1", {}, title), inside),
  );
}

/** @param {HTMLElement} main */
export function showNotFound(main) {
  fill(main, stateView("Page not found", "help",
    h("p", {}, "This address leads to no part of the page."),
    h("p", { class: "state-actions" }, h("a", { href: "#/" }, "Go to the start page"))));
  return {};
}

export function conversationNotFound() {
  return stateView("Conversation not found", "help",
    h("p", {}, "It was deleted, or it belongs to another key."),
    h("p", { class: "state-actions" },
      h("button", { type: "button", class: "link-button", onclick: openSidebar }, "Show all conversations"),
      h("a", { href: "#/" }, "Start a new conversation")));
}

export function runNotFound() {
  return stateView("Run not found", "help",
    h("p", {}, "It was deleted, or it belongs to another key."),
    h("p", { class: "state-actions" }, h("a", { href: "#/runs" }, "Show all runs")));
}

/** @param {HTMLElement} main */
export function showSignedOut(main) {
  const form = h("form", { class: "key-form", "aria-label": "Sign in" });
  const draw = (complaint) => {
    const { input, parts } = keyFields(complaint);
    const use = h("button", { type: "submit", class: "button primary" }, "Use this key");
    form.onsubmit = async (event) => {
      event.preventDefault();
      use.disabled = true;
      const problem = await signIn(input.value.trim());
      if (problem && isSignedOut()) draw(problem.detail || problem.title);
    };
    fill(form, parts, h("div", { class: "dialog-actions" }, use));
    input.focus();
  };
  fill(main, stateView("Signed out", "key", form));
  draw("");
  return {};
}

/** Ask in the dialog until a key works, or the user gives up. */
export async function askToSignIn() {
  let complaint = "";
  for (;;) {
    const key = await askForKey(complaint);
    if (!key) return;
    const problem = await signIn(key);
    if (!problem) return;
    complaint = problem.detail || problem.title;
  }
}
