/** What parts of the page tell each other without knowing each other. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

const SESSIONS = "assay:sessions";
const SIDEBAR = "assay:sidebar";

/** Conversations have changed: whoever lists them looks again. */
export const refreshSessions = () => document.dispatchEvent(new CustomEvent(SESSIONS));
export const onSessions = (act) => document.addEventListener(SESSIONS, act);

export const openSidebar = () => document.dispatchEvent(new CustomEvent(SIDEBAR));
export const onSidebar = (act) => document.addEventListener(SIDEBAR, act);

/** On a narrow screen the list of conversations is behind this. */
export function sidebarButton() {
  return h("button", {
    type: "button", class: "icon-button only-narrow", "aria-label": "Show conversations and runs",
    "aria-controls": "sidebar", onclick: openSidebar,
  }, icon("menu"));
}
