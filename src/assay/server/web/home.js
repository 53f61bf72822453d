/** Start page: a message field for a new session. */

import { post } from "./api.js";
import { Composer, dropZone } from "./composer.js";
import { fill, h } from "./dom.js";
import { icon, mark } from "./icons.js";
import { modelChoice } from "./models.js";
import { problemBox } from "./notices.js";
import { begun, refreshSessions, sidebarButton } from "./signals.js";
import { send } from "./uploads.js";

const IDEAS = [
  ["Plot a damped oscillation", "Plot a damped oscillation with three different damping factors, and label the curves."],
  ["Explore a table", "Load the CSV file I added, tell me what is in it, and show the five most interesting rows."],
  ["Simulate a queue", "Simulate a queue with one server for a day, and show how waiting time grows with load."],
];

/** @param {HTMLElement} main @param {string} _ @param {AbortSignal} signal */
export function showHome(main, _, signal) {
  document.title = "Assay";
  let session = null;
  const pending = new Map();
  const notice = h("div", { class: "notice" });
  const model = modelChoice("Model: automatic");

  async function begin(text) {
    fill(notice);
    try {
      session ??= await post("v1/sessions", { model: model.value });
      for (const [file, { chip, ending }] of pending) {
        if (!(await send(session.id, file, chip, ending.signal))) return false;
        pending.delete(file);
      }
      await post(`v1/sessions/${session.id}/turns`, { message: text });
      refreshSessions();
      begun(session.id);
      if (!signal.aborted) location.hash = `#/s/${session.id}`;
      return true;
    } catch (error) {
      fill(notice, problemBox(error, () => composer.submit()));
      return false;
    }
  }

  function take(files) {
    for (const file of files) {
      const ending = new AbortController();
      const chip = composer.chip(file, () => {
        ending.abort();
        pending.delete(file);
      });
      pending.set(file, { chip, ending });
    }
    composer.text.focus();
  }

  const composer = new Composer(
    { onSend: begin, onStop: () => {}, onFiles: take },
    { placeholder: "Ask a question, or say what to compute", beside: model.element },
  );
  const ideas = IDEAS.map(([title, text]) => h("button", { type: "button", class: "idea", onclick: () => composer.put(text) }, title));
  const view = h(
    "section", { class: "home" },
    h("header", { class: "head bare" }, sidebarButton()),
    h("div", { class: "home-body" },
      h("div", { class: "home-mark" }, mark()),
      h("h1", { class: "home-title" }, "What would you like to know?"),
      h("p", { class: "home-lead" }, "Ask a question or drop a file. Assay writes Python, runs it in a sandbox, and shows the code, its output and the answer."),
      notice, composer.element,
      h("div", { class: "ideas", role: "group", "aria-label": "Examples" }, ideas),
      h("a", { class: "home-run", href: "#/runs" }, icon("flag"),
        h("span", {}, "Have tests? ", h("strong", {}, "Start a run"), ": Assay changes the code until they pass, and an independent check decides."))),
  );
  dropZone(view, take);
  fill(main, view);
  if (!window.matchMedia("(pointer: coarse)").matches) composer.text.focus();
  return {};
}
