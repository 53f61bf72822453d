/** Events by which parts of the page reach each other without importing each other. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

const SESSIONS = "assay:sessions";
const SIDEBAR = "assay:sidebar";

/** Conversations have changed: lists of them load again. */
export const refreshSessions = () => document.dispatchEvent(new CustomEvent(SESSIONS));
export const onSessions = (act) => document.addEventListener(SESSIONS, act);

export const openSidebar = () => document.dispatchEvent(new CustomEvent(SIDEBAR));
export const onSidebar = (act) => document.addEventListener(SIDEBAR, act);

const fresh = new Set();

/** A conversation was begun on this page: its first answer is news when it is opened. */
export const begun = (session) => fresh.add(session);
/** Whether it was begun on this page and is opened for the first time. */
export const isFresh = (session) => fresh.delete(session);

/** On a narrow screen the list of conversations is behind this. */
export function sidebarButton() {
  return h("button", {
    type: "button", class: "icon-button only-narrow", "aria-label": "Show conversations and runs",
    "aria-controls": "sidebar", onclick: openSidebar,
  }, icon("menu"));
}
