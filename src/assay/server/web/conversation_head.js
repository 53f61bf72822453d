/** Header of a session: title, model, cost and actions. */

import { download } from "./api.js";
import { h } from "./dom.js";
import { plural, usageLine } from "./format.js";
import { icon } from "./icons.js";
import { menu, menuButton } from "./menu.js";
import { complain } from "./notices.js";
import { deleteSession } from "./session_actions.js";
import { sidebarButton } from "./signals.js";

export function conversationHead({ id, onUndo, onRename }) {
  const title = h("h1", { class: "head-title" }, "Conversation");
  const model = h("span", { class: "badge", hidden: true });
  const cost = h("span", { class: "quiet cost" });
  const undo = h("button", { type: "button", class: "icon-button", "aria-label": "Undo the last turn", title: "Undo the last turn", disabled: true, onclick: onUndo }, icon("undo"));
  const save = (format, name) => download(`v1/sessions/${id}/export?format=${format}`, name).catch(complain);
  const actions = menu("More", [
    menuButton("pencil", "Rename", () => onRename(title.textContent)),
    menuButton("download", "Export as notebook", () => save("ipynb", "conversation.ipynb")),
    menuButton("download", "Export as Markdown", () => save("markdown", "conversation.md")),
    menuButton("trash", "Delete", () => deleteSession(id, title.textContent), "danger"),
  ]);
  const element = h("header", { class: "head" }, sidebarButton(), h("div", { class: "head-words" }, title, h("div", { class: "head-facts" }, model, cost)), undo, actions);
  return {
    element,
    describe({ title: name, model: who }) {
      if (name !== undefined) title.textContent = name || "New conversation";
      if (who) {
        model.hidden = false;
        model.textContent = who;
      }
    },
    account(usage, turns) {
      undo.disabled = turns === 0;
      cost.textContent = [turns ? plural(turns, "turn") : "", usageLine(usage)].filter(Boolean).join(" · ");
    },
  };
}
