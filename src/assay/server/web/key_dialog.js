/** Asks for an API key, in a dialog or a form on the page. All waiting requests share one dialog. */

import { fresh, h } from "./dom.js";
import { icon } from "./icons.js";

let asking = null;

/** @param {string} complaint about the previous key @returns {Promise<string | null>} */
export function askForKey(complaint) {
  asking ??= show(complaint).finally(() => {
    asking = null;
  });
  return asking;
}

/** Elements of a form that asks for a key; `input` is in `parts`. @param {string} complaint */
export function keyFields(complaint) {
  const help = fresh("key-help");
  const input = h("input", {
    type: "password", id: fresh("key"), required: true, autocomplete: "current-password",
    spellcheck: "false", "aria-describedby": help, placeholder: "assay_…",
  });
  const parts = [
    h("p", { id: help }, "This server requires an API key. Its administrator creates one with ",
      h("code", {}, "assay keys create"), ". The key stays in this tab until you close it."),
    complaint ? h("p", { class: "complaint", role: "alert" }, complaint) : null,
    h("label", { for: input.id }, "API key"), input,
  ];
  return { input, parts };
}

function show(complaint) {
  return new Promise((resolve) => {
    const title = fresh("key-title");
    const { input, parts } = keyFields(complaint);
    const form = h(
      "form", { method: "dialog" },
      h("h2", { id: title }, icon("key"), "API key required"), parts,
      h("div", { class: "dialog-actions" },
        h("button", { type: "button", class: "button", onclick: () => dialog.close("") }, "Not now"),
        h("button", { type: "submit", class: "button primary" }, "Use this key")),
    );
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": title }, form);
    form.addEventListener("submit", () => dialog.close(input.value.trim()));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue || null);
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
