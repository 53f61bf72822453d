/** Starts the page: the sidebar, and the view for the address. */

import { isSignedOut, onSigned } from "./api.js";
import { showConversation } from "./conversation.js";
import { fill, h } from "./dom.js";
import { showHome } from "./home.js";
import { icon, mark } from "./icons.js";
import { reportStray } from "./notices.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";
import { sessionList } from "./session_list.js";
import { showSettings } from "./settings.js";
import { onSidebar, refreshSessions } from "./signals.js";
import { listenToKeys } from "./shortcuts.js";
import { askToSignIn, showNotFound, showSignedOut } from "./state_views.js";
import { chosenTheme, nextTheme } from "./theme.js";

const ROUTES = [
  [/^#\/s\/([\w.~-]+)$/, showConversation],
  [/^#\/r\/([\w.~-]+)$/, showRun],
  [/^#\/runs$/, showRuns],
  [/^#\/settings$/, showSettings],
  [/^(?:#\/?)?$/, showHome],
  [/^/, showNotFound],
];
const NEXT_THEME = { auto: ["auto", "Appearance: system"], light: ["sun", "Appearance: light"], dark: ["moon", "Appearance: dark"] };

const shell = document.getElementById("shell");
const main = document.getElementById("main");
let leaving = new AbortController();
let view = null;
let draft = { hash: "", text: "" };

function route() {
  leaving.abort();
  leaving = new AbortController();
  const [pattern, named] = ROUTES.find(([each]) => each.test(location.hash));
  const [, id = ""] = pattern.exec(location.hash);
  const show = isSignedOut() ? showSignedOut : named;
  main.dataset.view = show.name;
  view = show(main, id, leaving.signal);
  showSidebar(false);
  for (const link of document.querySelectorAll(".side-link")) {
    const here = link.getAttribute("href") === location.hash || (link.dataset.also && location.hash.startsWith(link.dataset.also));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** After sign-in or sign-out: show the view for it, and keep a message in progress. */
function signed() {
  const field = () => document.querySelector(".composer textarea");
  if (isSignedOut()) draft = { hash: location.hash, text: field()?.value ?? "" };
  route();
  if (isSignedOut()) return;
  if (draft.text && draft.hash === location.hash && field()) field().value = draft.text;
  refreshSessions();
}

function showSidebar(open) {
  const was = shell.classList.contains("open");
  shell.classList.toggle("open", open);
  if (open && !was) document.getElementById("search")?.focus();
}

function sidebar() {
  const { search, list } = sessionList();
  const theme = h("button", { type: "button", class: "icon-button", onclick: nextTheme });
  const drawTheme = () => {
    const [glyph, label] = NEXT_THEME[chosenTheme()];
    fill(theme, icon(glyph));
    theme.setAttribute("aria-label", label);
    theme.title = label;
  };
  document.addEventListener("assay:theme", drawTheme);
  drawTheme();
  const key = h("button", { type: "button", class: "button side-key", hidden: true, onclick: askToSignIn }, icon("key"), "Enter API key");
  onSigned(() => {
    key.hidden = !isSignedOut();
  });
  fill(
    document.getElementById("sidebar"),
    h("div", { class: "side-head" },
      h("a", { class: "brand", href: "#/", "aria-label": "Assay, start page" }, mark(), h("span", {}, "Assay")),
      h("button", { type: "button", class: "icon-button only-narrow", "aria-label": "Close", onclick: () => showSidebar(false) }, icon("close"))),
    h("nav", { class: "side-nav", "aria-label": "Main" },
      h("a", { class: "side-link", href: "#/" }, icon("plus"), "New conversation"),
      h("a", { class: "side-link", href: "#/runs", "data-also": "#/r/" }, icon("flag"), "Runs")),
    search, list, key,
    h("div", { class: "side-foot" },
      h("a", { class: "side-link", href: "#/settings" }, icon("sliders"), "Settings"), theme),
  );
}

sidebar();
listenToKeys(() => (shell.classList.contains("open") ? { escape: () => showSidebar(false) } : view));
document.getElementById("veil").addEventListener("click", () => showSidebar(false));
onSidebar(() => showSidebar(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("unhandledrejection", (event) => reportStray(event));
window.addEventListener("hashchange", route);
onSigned(signed);
route();
