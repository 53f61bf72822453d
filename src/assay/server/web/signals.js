/** Events between parts of the page that do not import each other. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

const SESSIONS = "assay:sessions";
const SIDEBAR = "assay:sidebar";

/** Sessions have changed: lists of them load again. */
export const refreshSessions = () => document.dispatchEvent(new CustomEvent(SESSIONS));
export const onSessions = (act) => document.addEventListener(SESSIONS, act);

export const openSidebar = () => document.dispatchEvent(new CustomEvent(SIDEBAR));
export const onSidebar = (act) => document.addEventListener(SIDEBAR, act);

const fresh = new Set();

/** Mark a session that was created on this page, so that its first answer is announced. */
export const begun = (session) => fresh.add(session);
/** Whether it was created on this page and is opened for the first time. */
export const isFresh = (session) => fresh.delete(session);

/** Button that shows the list of sessions on a narrow screen. */
export function sidebarButton() {
  return h("button", {
    type: "button", class: "icon-button only-narrow", "aria-label": "Show conversations and runs",
    "aria-controls": "sidebar", onclick: openSidebar,
  }, icon("menu"));
}
