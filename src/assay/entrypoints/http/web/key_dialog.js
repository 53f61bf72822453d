/** Asks for an API key. However many requests wait for one, the person is asked once. */

import { fresh, h } from "./dom.js";
import { icon } from "./icons.js";

let asking = null;

/** @param {string} complaint about the key that was tried @returns {Promise<string | null>} */
export function askForKey(complaint) {
  asking ??= show(complaint).finally(() => {
    asking = null;
  });
  return asking;
}

function show(complaint) {
  return new Promise((resolve) => {
    const [title, help] = [fresh("key-title"), fresh("key-help")];
    const input = h("input", {
      type: "password", id: fresh("key"), required: true, autocomplete: "current-password",
      spellcheck: "false", "aria-describedby": help, placeholder: "assay_…",
    });
    const form = h(
      "form", { method: "dialog" },
      h("h2", { id: title }, icon("key"), "A key is needed"),
      h("p", { id: help },
        "This server answers only those who have a key. Whoever runs it makes one with ",
        h("code", {}, "assay keys create"), ". It is kept in this tab until you close it."),
      complaint ? h("p", { class: "complaint", role: "alert" }, complaint) : null,
      h("label", { for: input.id }, "API key"), input,
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
