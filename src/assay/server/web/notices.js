/** Messages: errors with a hint, questions, short notes, screen reader announcements. */

import { fill, fresh, h } from "./dom.js";
import { icon } from "./icons.js";
import { seconds } from "./format.js";

const TOAST_MS = 5000;

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

export function toast(text, kind = "") {
  const note = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), TOAST_MS);
}

/** Show a failure in a corner, if it has no place on the page. */
export function complain(error) {
  if (error?.name === "AbortError") return;
  const hint = error?.hint ? ` ${error.hint}` : "";
  toast(`${error?.detail || error?.title || error?.message || "The request failed."}${hint}`, "bad");
}

/**
 * Show a failure in place: what, why, what to do, and the request ID for the log.
 *
 * @param {any} problem
 * @param {() => void} [again]
 */
export function problemBox(problem, again) {
  const wait = problem.retryAfterS;
  const button = again ? h("button", { type: "button", class: "button small", onclick: again }, "Try again") : null;
  if (button && wait) countDown(button, wait);
  const title = problem.title ?? "Something went wrong";
  return h(
    "div", { class: "problem", role: "alert" },
    icon("warning"),
    h("div", { class: "problem-body" },
      h("strong", {}, title),
      problem.detail || !problem.title ? h("p", {}, problem.detail || problem.message) : null,
      problem.errors?.length ? h("ul", { class: "hint" }, problem.errors.map(({ field, message }) => h("li", {}, h("code", {}, field), " ", message))) : null,
      problem.hint ? h("p", { class: "hint" }, problem.hint) : null,
      wait ? h("p", { class: "hint" }, `Try again in ${seconds(wait)}.`) : null,
      problem.requestId ? h("p", { class: "request-id" }, `Request ID ${problem.requestId}`) : null),
    button,
  );
}

function countDown(button, waitS) {
  const until = Date.now() + waitS * 1000;
  button.disabled = true;
  const tick = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0 && button.isConnected) setTimeout(tick, 250);
  };
  setTimeout(tick);
}

/** @returns {Promise<boolean>} whether the user agreed */
export function confirmed({ title, text, action, danger = false }) {
  return new Promise((resolve) => {
    const label = fresh("question");
    const dialog = h(
      "dialog", { class: "dialog", "aria-labelledby": label },
      h("form", { method: "dialog" },
        h("h2", { id: label }, title),
        h("p", {}, text),
        h("div", { class: "dialog-actions" },
          h("button", { class: "button", value: "", autofocus: true }, "Cancel"),
          h("button", { class: `button ${danger ? "danger" : "primary"}`, value: "yes" }, action))),
    );
    open(dialog, () => resolve(dialog.returnValue === "yes"));
  });
}

/** @returns {Promise<string | null>} */
export function askForText({ title, label, value, action }) {
  return new Promise((resolve) => {
    const [heading, id] = [fresh("question"), fresh("answer")];
    const input = h("input", { id, type: "text", value, maxlength: "200", required: true });
    const dialog = h(
      "dialog", { class: "dialog", "aria-labelledby": heading },
      h("form", { method: "dialog" },
        h("h2", { id: heading }, title),
        h("label", { for: id }, label), input,
        h("div", { class: "dialog-actions" },
          h("button", { type: "button", class: "button", onclick: () => dialog.close("") }, "Cancel"),
          h("button", { class: "button primary", value: "yes" }, action))),
    );
    open(dialog, () => resolve(dialog.returnValue === "yes" ? input.value.trim() || null : null));
    input.select();
  });
}

/** Show a dialog, and remove it when it is closed; the browser restores the focus. */
export function open(dialog, onClose = () => {}) {
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close("");
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Bar at the top, visible only while the connection is lost. */
export function connection(state) {
  const bar = document.getElementById("connection");
  if (state.state !== "lost") {
    if (!bar.hidden && state.state === "live") announce("Reconnected.");
    bar.hidden = true;
    return fill(bar);
  }
  const busy = state.problem?.status === 429;
  const text = busy ? "Server busy, retrying." : "Connection lost, retrying.";
  bar.hidden = false;
  return fill(bar, h("span", { class: "pulse" }), h("span", {}, text),
    h("button", { type: "button", class: "link-button", onclick: state.again }, "Retry now"));
}

/** A failed request that no view handles. Other errors are bugs, and are reported as such. */
export function reportStray(event) {
  if (event.reason?.name === "AbortError") event.preventDefault();
  else if (event.reason?.title !== undefined) {
    event.preventDefault();
    complain(event.reason);
  }
}
