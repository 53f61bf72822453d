/** Form for a new run: goal, check command, model, budget, files. */

import { post } from "./api.js";
import { dropZone } from "./composer.js";
import { fill, fresh, h } from "./dom.js";
import { bytes, plural } from "./format.js";
import { icon } from "./icons.js";
import { modelChoice } from "./models.js";
import { problemBox } from "./notices.js";

const LEFT_OUT = /(?:^|\/)(?:\.git|\.venv|node_modules|__pycache__|\.assay)(?:\/|$)/;

/** @param {File} file @returns {Promise<string>} */
export function asBase64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Return the folder of a file below the chosen one, without its name. Pure. */
export function pathIn(file) {
  const below = file.webkitRelativePath || "";
  return below.includes("/") ? below.slice(below.indexOf("/") + 1) : file.name;
}

function field(title, input, help) {
  const id = fresh("field");
  input.id = id;
  const about = help ? h("p", { class: "help", id: `${id}-help` }, help) : null;
  if (about) input.setAttribute("aria-describedby", about.id);
  return h("div", { class: "field" }, h("label", { for: id }, title), input, about);
}

const number = (placeholder, step = "1", min = "1") => h("input", { type: "number", inputmode: "decimal", min, step, placeholder });

export function runForm() {
  const files = new Map();
  const goal = h("textarea", { rows: "3", required: true, placeholder: "Make the tests in tests/ pass" });
  const check = h("input", { type: "text", class: "mono", placeholder: "pytest -q", spellcheck: "false", autocapitalize: "off" });
  const model = modelChoice("Automatic");
  const [attempts, minutes, dollars] = [number("8"), number("30"), number("no limit", "0.01", "0.01")];
  const list = h("ul", { class: "pending", hidden: true, "aria-label": "Files" });
  const notice = h("div", { class: "notice" });
  const start = h("button", { type: "submit", class: "button primary" }, "Start the run");

  function draw() {
    list.hidden = files.size === 0;
    const sum = [...files.values()].reduce((size, file) => size + file.size, 0);
    const rows = [...files].slice(0, 40).map(([path, file]) => h("li", { class: "pending-file" }, icon("file"), h("span", { class: "chip-name" }, path), h("span", { class: "quiet" }, bytes(file.size)),
      h("button", { type: "button", class: "icon-button tiny", "aria-label": `Remove ${path}`, onclick: () => { files.delete(path); draw(); } }, icon("close"))));
    fill(list, rows, h("li", { class: "quiet" }, `${plural(files.size, "file")}, ${bytes(sum)}`));
  }

  function take(added) {
    for (const file of added) if (!LEFT_OUT.test(pathIn(file))) files.set(pathIn(file), file);
    draw();
  }

  async function begin(event) {
    event.preventDefault();
    start.disabled = true;
    fill(notice);
    try {
      const given = await Promise.all([...files].map(async ([path, file]) => ({ path, content_base64: await asBase64(file) })));
      const command = check.value.trim();
      const budget = { attempts: +attempts.value || undefined, wall_s: minutes.value ? minutes.value * 60 : undefined, usd: +dollars.value || undefined };
      const run = await post("v1/runs", { goal: goal.value.trim(), check: command ? [command] : undefined, model: model.value, budget, files: given });
      location.hash = `#/r/${run.id}`;
    } catch (error) {
      fill(notice, problemBox(error));
    } finally {
      start.disabled = false;
    }
  }

  const form = h(
    "form", { class: "card run-form", "aria-label": "New run", onsubmit: begin },
    h("h2", {}, "New run"),
    field("Goal", goal, "What you want, in one sentence or more. Not how to do it."),
    field("Check command", check, "Decides whether the run is accepted: pytest -q, npm test, cargo test. If empty, test files decide, or checks that Assay writes first."),
    filePickers(take), list,
    h("div", { class: "fields" }, field("Model", model.element), field("Attempts", attempts), field("Minutes", minutes), field("Dollars", dollars)),
    notice, h("div", { class: "form-actions" }, start),
  );
  goal.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  dropZone(form, take);
  return form;
}

function filePickers(take) {
  const picker = (label, glyph, more) => {
    const input = h("input", { type: "file", class: "unseen", multiple: true, tabindex: "-1", "aria-hidden": "true", ...more });
    input.addEventListener("change", () => take([...input.files]));
    return [h("button", { type: "button", class: "button small", onclick: () => input.click() }, icon(glyph), label), input];
  };
  return h("div", { class: "drop-hint" }, h("span", { class: "quiet" }, "Drop the project files here, or"), picker("Choose files", "clip", {}), picker("Choose a folder", "file", { webkitdirectory: true }));
}
