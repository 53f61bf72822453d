/** Message field: text, files, the model for a new session, send and stop buttons. */

import { fill, fresh, h } from "./dom.js";
import { icon } from "./icons.js";
import { bytes } from "./format.js";
import { announce } from "./notices.js";

const TALLEST = 260;
const KEYS = "Enter to send, Shift+Enter for a new line";
const touch = window.matchMedia("(pointer: coarse)");
const WAIT = `Wait for the current turn, or ${touch.matches ? "stop it" : "press Esc to stop it"}.`;

/**
 * @typedef {object} Wishes
 * @property {(text: string) => Promise<boolean> | boolean} onSend true if the message was accepted
 * @property {() => void} onStop
 * @property {(files: File[]) => void} onFiles
 */

export class Composer {
  /** @param {Wishes} wishes @param {{placeholder: string, beside?: any}} look without `beside`, a hint says what keys do */
  constructor({ onSend, onStop, onFiles }, { placeholder, beside = null }) {
    this.#send = onSend;
    this.#stop = onStop;
    const [field, picker] = [fresh("message"), fresh("files")];
    this.text = h("textarea", {
      id: field, rows: "1", placeholder, "aria-label": "Message", enterkeyhint: touch.matches ? "enter" : "send",
      "aria-keyshortcuts": "Control+Enter Meta+Enter",
    });
    this.chips = h("ul", { class: "pending", "aria-label": "Files", hidden: true });
    this.picker = h("input", { type: "file", id: picker, class: "unseen", multiple: true, tabindex: "-1", "aria-hidden": "true" });
    this.attach = h("button", { type: "button", class: "icon-button", "aria-label": "Add files", title: "Add files, or drop them here", onclick: () => this.picker.click() }, icon("clip"));
    this.button = h("button", { type: "submit", class: "send" });
    this.hint = h("span", { class: "composer-hint" });
    this.element = h(
      "form", { class: "composer", "aria-label": "Write a message" },
      this.chips, this.text,
      h("div", { class: "composer-foot" }, this.attach, this.picker, beside ?? this.hint, h("span", { class: "grow" }), this.button),
    );
    this.#listen(onFiles);
    this.busy = false;
  }

  #send;
  #stop;
  #busy = false;

  get busy() {
    return this.#busy;
  }

  /** During a turn the user cannot send, but can stop the turn. */
  set busy(busy) {
    if (busy !== this.#busy || !this.hint.textContent) this.#hint(busy ? WAIT : KEYS, busy);
    this.#busy = busy;
    this.button.classList.toggle("stopping", busy);
    this.button.setAttribute("aria-label", busy ? "Stop (Escape)" : "Send");
    this.button.title = busy ? "Stop (Esc)" : "Send (Enter, or Ctrl+Enter)";
    fill(this.button, icon(busy ? "stop" : "send"));
  }

  /** Show what keys do now; `urgent` after a key without effect. */
  #hint(text, busy, urgent = false) {
    this.hint.textContent = text;
    this.hint.className = ["composer-hint", busy && "busy", urgent && "urgent"].filter(Boolean).join(" ");
  }

  fit() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(TALLEST, this.text.scrollHeight)}px`;
  }

  put(text) {
    this.text.value = text;
    this.fit();
    this.text.focus();
    this.text.setSelectionRange(text.length, text.length);
  }

  async submit() {
    const text = this.text.value.trim();
    if (this.busy) {
      this.#hint(WAIT, true, true);
      announce(WAIT);
      return;
    }
    if (!text) return;
    this.text.value = "";
    this.fit();
    // Restore a message that was not accepted.
    if (!(await this.#send(text)) && !this.text.value) this.put(text);
  }

  #listen(onFiles) {
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) this.#stop();
      else this.submit();
    });
    this.text.addEventListener("input", () => {
      this.fit();
      this.hint.classList.remove("urgent");
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
      const asked = event.ctrlKey || event.metaKey;
      if (!asked && (touch.matches || event.altKey)) return;
      event.preventDefault();
      this.submit();
    });
    this.text.addEventListener("paste", (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      onFiles([...event.clipboardData.files]);
    });
    this.picker.addEventListener("change", () => {
      onFiles([...this.picker.files]);
      this.picker.value = "";
    });
  }

  /** A file that is uploading or waiting. @returns {{progress: Function, done: Function, failed: Function}} */
  chip(file, onRemove) {
    const bar = h("progress", { max: "1", value: 0, "aria-label": `Uploading ${file.name}`, hidden: true });
    const said = h("span", { class: "quiet" }, bytes(file.size));
    const away = h("button", { type: "button", class: "icon-button tiny", "aria-label": `Remove ${file.name}` }, icon("close"));
    const item = h("li", { class: "pending-file" }, icon("file"), h("span", { class: "chip-name" }, file.name), said, bar, away);
    const drop = () => {
      item.remove();
      this.chips.hidden = this.chips.children.length === 0;
    };
    away.addEventListener("click", () => {
      drop();
      onRemove();
    });
    this.chips.append(item);
    this.chips.hidden = false;
    return {
      progress: (share) => {
        bar.hidden = false;
        bar.value = share;
      },
      done: drop,
      failed: (problem) => {
        bar.hidden = true;
        item.classList.add("failed");
        said.textContent = problem.detail || problem.title || problem.message;
      },
    };
  }
}

/** Accept files that are dropped anywhere on an element. */
export function dropZone(element, onFiles) {
  let depth = 0;
  const mark = (on) => element.classList.toggle("dropping", on);
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  element.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth += 1;
    mark(true);
  });
  element.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  element.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) mark(false);
  });
  element.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    mark(false);
    onFiles([...event.dataTransfer.files]);
  });
}
