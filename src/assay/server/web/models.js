/** Selection of the model. */

import { get } from "./api.js";
import { fresh, h } from "./dom.js";
import { keep, kept } from "./theme.js";

const NAME = "assay.model";
let listed = null;

/** Names of available models; the empty one is the server's default. */
export async function listModels() {
  listed ??= get("v1/models").then(
    ({ data }) => data.map(({ id }) => id).filter((id) => id.startsWith("assay:")).map((id) => id.slice("assay:".length)),
  );
  try {
    return await listed;
  } catch {
    listed = null;
    return [];
  }
}

/** @param {string} automatic label of the server's default */
export function modelChoice(automatic) {
  const id = fresh("model");
  const usual = h("option", { value: "" }, automatic);
  const select = h("select", { id, "aria-label": "Model", class: "select" }, usual);
  listModels().then((models) => {
    const before = kept(NAME);
    select.append(...models.map((model) => h("option", { value: model, selected: model === before }, model)));
  });
  select.addEventListener("change", () => keep(NAME, select.value));
  return { element: select, get value() { return select.value || undefined; } };
}
