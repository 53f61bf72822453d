/** List of sessions: newest first, by day, searchable. */

import { get, isSignedOut, onSigned } from "./api.js";
import { h, refill } from "./dom.js";
import { dayOf } from "./format.js";
import { icon } from "./icons.js";
import { deleteSession, renameSession } from "./session_actions.js";
import { onSessions } from "./signals.js";

const PAGE = 100;
/** One request covers several changes within this time. */
const DELAY_MS = 150;

export function sessionList() {
  const search = h("input", { type: "search", id: "search", placeholder: "Search conversations", "aria-label": "Search conversations", autocomplete: "off", spellcheck: "false" });
  const list = h("nav", { class: "sessions", "aria-label": "Conversations" });
  const state = { sessions: [], complete: true, problem: null };
  const draw = () => refill(list, drawn(state, search.value.trim().toLowerCase(), older));

  async function load(before = null) {
    try {
      const after = before ? `&before=${encodeURIComponent(before)}` : "";
      const { sessions } = await get(`v1/sessions?limit=${PAGE}${after}`);
      const known = before ? state.sessions : [];
      const ids = new Set(known.map((session) => session.id));
      state.sessions = [...known, ...sessions.filter((session) => !ids.has(session.id))];
      state.complete = sessions.length < PAGE;
      state.problem = null;
    } catch (error) {
      state.problem = error;
    }
    draw();
  }

  const older = () => load(state.sessions.at(-1)?.updated_at);
  let waiting = null;
  onSessions(() => {
    clearTimeout(waiting);
    waiting = setTimeout(load, DELAY_MS);
  });
  search.addEventListener("input", draw);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      event.stopPropagation();
      search.value = "";
      draw();
    }
    if (event.key === "ArrowDown") list.querySelector("a")?.focus();
  });
  window.addEventListener("hashchange", draw);
  onSigned(() => {
    if (isSignedOut()) Object.assign(state, { sessions: [], complete: true });
    draw();
  });
  load();
  return { search: h("div", { class: "search" }, icon("search"), search), list };
}

function drawn({ sessions, complete, problem }, wanted, older) {
  if (isSignedOut()) return h("p", { class: "list-note" }, "Signed out. Enter an API key to see your conversations.");
  if (problem && !sessions.length) return h("p", { class: "list-note" }, problem.title);
  if (!sessions.length) return h("p", { class: "list-note" }, "Your conversations will be listed here.");
  const fitting = sessions.filter((session) => (session.title ?? "").toLowerCase().includes(wanted));
  const parts = [];
  let day = "";
  let rows = null;
  for (const session of fitting) {
    const its = dayOf(session.updated_at);
    if (its !== day) {
      day = its;
      rows = h("ul", {});
      parts.push(h("h2", { class: "list-day" }, day), rows);
    }
    rows.append(row(session));
  }
  if (!fitting.length) parts.push(h("p", { class: "list-note" }, "No conversation matches."));
  if (!complete) parts.push(h("button", { type: "button", class: "link-button older", onclick: older }, "Load older conversations"));
  return parts;
}

function row(session) {
  const title = session.title || "New conversation";
  const here = location.hash === `#/s/${session.id}`;
  return h(
    "li", { class: "session" },
    h("a", { href: `#/s/${session.id}`, "aria-current": here ? "page" : null, title },
      h("span", { class: "session-title" }, title),
      session.busy ? h("span", { class: "busy-dot", role: "img", "aria-label": "running" }) : null),
    h("span", { class: "session-actions" },
      h("button", { type: "button", class: "icon-button tiny", "aria-label": `Rename ${title}`, title: "Rename", onclick: () => renameSession(session.id, title) }, icon("pencil")),
      h("button", { type: "button", class: "icon-button tiny", "aria-label": `Delete ${title}`, title: "Delete", onclick: () => deleteSession(session.id, title) }, icon("trash"))),
  );
}
