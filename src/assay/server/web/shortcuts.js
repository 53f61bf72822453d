/** Keyboard shortcuts. */

import { fresh, h } from "./dom.js";
import { open } from "./notices.js";
import { openSidebar } from "./signals.js";
import { kept, nextTheme } from "./theme.js";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const CONTROL = MAC ? "⌘" : "Ctrl";

const LIST = [
  [[CONTROL, "Enter"], "Send the message"],
  [["Shift", "Enter"], "New line"],
  [["Esc"], "Stop the current turn, close a dialog"],
  [[CONTROL, "K"], "Search conversations"],
  [["N"], "New conversation"],
  [["R"], "Runs"],
  [["M"], "Go to the message field"],
  [["T"], "Change the appearance"],
  [["?"], "Show this list"],
];

export function shortcutTable() {
  return h("dl", { class: "shortcuts" }, LIST.map(([keys, does]) =>
    h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, does))));
}

function showList() {
  const title = fresh("shortcuts");
  open(h("dialog", { class: "dialog", "aria-labelledby": title },
    h("form", { method: "dialog" }, h("h2", { id: title }, "Keyboard"), shortcutTable(),
      h("div", { class: "dialog-actions" }, h("button", { class: "button primary" }, "Close")))));
}

const SINGLE = {
  n: () => { location.hash = "#/"; },
  r: () => { location.hash = "#/runs"; },
  t: nextTheme,
  m: () => document.querySelector(".composer textarea")?.focus(),
  "?": showList,
};

/** @param {() => {escape?: () => void}} current returns the visible view */
export function listenToKeys(current) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") return void current()?.escape?.();
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openSidebar();
      return void document.getElementById("search")?.focus();
    }
    const writing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (writing || event.ctrlKey || event.metaKey || event.altKey || kept("assay.single-keys") === "off") return;
    const act = SINGLE[event.key] ?? SINGLE[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
