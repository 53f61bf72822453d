/** The user's account and usage, and the appearance of the page. */

import { apiKey, get, signOut } from "./api.js";
import { fill, fresh, h } from "./dom.js";
import { money, tokens } from "./format.js";
import { problemBox } from "./notices.js";
import { shortcutTable } from "./shortcuts.js";
import { sidebarButton } from "./signals.js";
import { askToSignIn } from "./state_views.js";
import { THEMES, chooseTheme, chosenTheme, keep, kept } from "./theme.js";

const NAMES = { auto: "System", light: "Light", dark: "Dark" };

export function showSettings(main, _, signal) {
  document.title = "Settings · Assay";
  const account = h("div", { class: "waiting" });
  const group = fresh("theme");
  const themes = THEMES.map((theme) => h("label", { class: "choice" },
    h("input", { type: "radio", name: group, value: theme, checked: theme === chosenTheme(), onchange: () => chooseTheme(theme) }), NAMES[theme]));
  const single = h("input", { type: "checkbox", checked: kept("assay.single-keys") !== "off" });
  single.addEventListener("change", () => keep("assay.single-keys", single.checked ? "on" : "off"));
  fill(main, h(
    "section", { class: "page" },
    h("header", { class: "head" }, sidebarButton(), h("h1", { class: "head-title" }, "Settings")),
    h("div", { class: "page-body" },
      card("Access", account),
      card("Appearance", h("fieldset", { class: "choices" }, h("legend", { class: "unseen" }, "Appearance"), themes)),
      card("Keyboard", shortcutTable(), h("label", { class: "choice" }, single, "Single-key shortcuts")),
      card("HTTP API", h("p", {}, "This page uses the HTTP API for everything: see its ",
        h("a", { href: "docs" }, "reference"), " or its ", h("a", { href: "openapi.json" }, "OpenAPI description"), "."))),
  ));
  load(account, signal);
  return {};
}

const card = (title, ...inside) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title), inside);

async function load(place, signal) {
  try {
    const me = await get("v1/me", signal);
    place.classList.remove("waiting");
    fill(place,
      h("p", {}, me.auth === "none"
        ? "This server accepts connections from this machine only, and requires no key."
        : h("span", {}, "Signed in as ", h("strong", {}, me.user), `, role ${me.role}`, me.key_name ? `, with the key “${me.key_name}”.` : ".")),
      facts(me),
      me.auth === "none" ? null : h("p", {},
        h("button", { type: "button", class: "button small", onclick: askToSignIn }, "Use another key"), " ",
        apiKey() ? h("button", { type: "button", class: "button small", onclick: signOut }, "Forget the key") : null));
  } catch (error) {
    if (signal.aborted) return;
    place.classList.remove("waiting");
    fill(place, problemBox(error, () => load(place, signal)));
  }
}

function facts({ usage = {}, limits = {} }) {
  const rows = [
    ["Requests today", usage.requests, limits.requests_per_minute && `at most ${limits.requests_per_minute} per minute`],
    ["Tokens today", usage.tokens === undefined ? undefined : tokens(usage.tokens), limits.tokens_per_day && `of ${tokens(limits.tokens_per_day)}`],
    ["Cost today", usage.cost_usd === undefined ? undefined : money(usage.cost_usd), limits.usd_per_day && `of ${money(limits.usd_per_day)}`],
    ["Active runs", usage.running, limits.runs && `of ${limits.runs}`],
  ].filter(([, used]) => used !== undefined);
  if (!rows.length) return null;
  return h("dl", { class: "facts" }, rows.map(([name, used, most]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, `${used}`, most ? h("span", { class: "quiet" }, ` ${most}`) : null))));
}
