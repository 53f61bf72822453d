/** View of a session: its events in order, and a message field. */

import { get, post } from "./api.js";
import { Composer, dropZone } from "./composer.js";
import { conversationHead } from "./conversation_head.js";
import { fill, h, perFrame } from "./dom.js";
import { oneLine, plural, sumUsage } from "./format.js";
import { icon } from "./icons.js";
import { parseBlocks, plainText } from "./markdown.js";
import { announce, complain, connection, problemBox } from "./notices.js";
import { renameSession } from "./session_actions.js";
import { isFresh, refreshSessions } from "./signals.js";
import { conversationNotFound } from "./state_views.js";
import { follow } from "./stream.js";
import { Turn, aside } from "./turn.js";
import { send } from "./uploads.js";

const NEAR_THE_END = 120;
const QUIET_MS = 1500;
const MOST_READ = 2000;
/** Status codes for a name without a session, or an invalid name. */
const NONE = new Set([404, 410, 422]);

class Conversation {
  #turns = [];
  #undoing = false;
  #heard = 0;
  #pinned = true;
  #top = 0;
  #model = "";
  /** Turns up to this number had ended before the page was opened. */
  #old = Number.POSITIVE_INFINITY;
  #known;
  #knows;

  constructor(id, signal) {
    this.id = id;
    this.#known = new Promise((resolve) => {
      this.#knows = resolve;
    });
    this.signal = signal;
    this.log = h("div", { class: "log", role: "log", "aria-label": "Conversation", "aria-live": "off" });
    this.composer = new Composer(
      { onSend: (text) => this.say(text), onStop: () => this.stop(), onFiles: (files) => this.load(files) },
      { placeholder: "Ask a question, or say what to compute" },
    );
    this.head = conversationHead({ onUndo: () => this.undo(), onRename: (title) => this.rename(title), id });
    this.below = h("button", { type: "button", class: "below", hidden: true, onclick: () => this.toEnd(true) }, "Jump to latest");
    this.scroll = h("div", { class: "scroll" }, this.log);
    this.notice = h("div", { class: "notice" });
    this.element = h("section", { class: "conversation" }, this.head.element, this.scroll,
      h("div", { class: "dock" }, this.below, this.notice, this.composer.element));
    this.toEnd = perFrame((force) => this.#scrollToEnd(force));
    this.scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const growing = new ResizeObserver(() => this.toEnd());
    growing.observe(this.log);
    signal.addEventListener("abort", () => growing.disconnect());
    dropZone(this.element, (files) => this.load(files));
  }

  get #turn() {
    return this.#turns.at(-1);
  }

  get busy() {
    return Boolean(this.#turn && !this.#turn.ended);
  }

  async say(text) {
    try {
      fill(this.notice);
      this.#pinned = true;
      this.#old = Math.min(this.#old, this.#turn?.number ?? 0);
      await post(`v1/sessions/${this.id}/turns`, { message: text });
      return true;
    } catch (error) {
      fill(this.notice, problemBox(error, () => {
        fill(this.notice);
        this.composer.submit();
      }));
      return false;
    }
  }

  async stop() {
    if (!this.busy) return;
    announce("Stopping.");
    await post(`v1/sessions/${this.id}/cancel`).catch(complain);
  }

  async undo() {
    this.#undoing = true;
    await post(`v1/sessions/${this.id}/undo`).catch((error) => {
      this.#undoing = false;
      complain(error);
    });
  }

  async rename(title) {
    const session = await renameSession(this.id, title);
    if (session) this.describe(session);
  }

  load(files) {
    for (const file of files) {
      const ending = new AbortController();
      const chip = this.composer.chip(file, () => ending.abort());
      send(this.id, file, chip, ending.signal);
    }
  }

  describe(session) {
    document.title = `${session.title || "Conversation"} · Assay`;
    this.#model = session.model || this.#model;
    this.head.describe({ title: session.title, model: this.#model });
  }

  /** @param {import("./stream.js").StreamEvent} event */
  take({ id, kind, data }) {
    this.#heard = Date.now();
    const turn = this.#turn;
    const acts = {
      turn_started: () => this.#begin(data),
      reply_delta: () => turn?.speech(data),
      cell_started: () => turn?.cellBegan(data),
      cell_output_delta: () => turn?.printed(data, id !== null),
      cell_ended: () => turn?.cellEnded(data),
      tool_used: () => turn?.tool(data),
      turn_ended: () => this.#end(data),
      turn_undone: () => this.#undone(data),
      file_loaded: () => this.#between(aside(`${data.path} is in the workspace.`, data.about)),
      state_restoring: () => this.busy && turn.restoring(data),
      packages_added: () => this.#between(aside(`Packages added: ${data.packages.join(", ")}.`)),
      state_rebuilt: () => this.#between(aside(rebuilt(data))),
      model_chosen: () => this.#choose(data.model),
    };
    acts[kind]?.();
    this.composer.busy = this.busy;
    this.toEnd();
  }

  #begin(data) {
    this.log.querySelector(".blank")?.remove();
    const turn = new Turn(this.id, data, { signal: this.signal, onAgain: (message) => this.composer.put(message) });
    this.#turns.push(turn);
    this.log.append(turn.element);
    this.#account();
    refreshSessions();
  }

  #end(data) {
    this.#turn?.end(data);
    this.#account();
    this.#read(data);
    refreshSessions();
  }

  /** Announce an answer to screen readers, unless it is an old one. */
  async #read({ turn, status, text }) {
    await this.#known;
    if (this.signal.aborted || turn <= this.#old) return;
    const answered = status === "answered";
    announce(answered ? `Answer: ${oneLine(plainText(parseBlocks(text.slice(0, MOST_READ))), 300)}` : "The turn ended without an answer.");
  }

  #undone({ turn: number }) {
    const index = this.#turns.findIndex((each) => each.number === number);
    if (index >= 0) {
      const [gone] = this.#turns.splice(index, 1);
      gone.element.replaceWith(aside(`Turn ${number} was undone.`));
      if (this.#undoing && !this.composer.text.value) this.composer.put(gone.message);
    }
    this.#undoing = false;
    this.#account();
  }

  /** Place a note between turns, or in the running turn. */
  #between(element) {
    this.log.querySelector(".blank")?.remove();
    if (this.busy) this.#turn.note(element);
    else this.log.append(element);
  }

  #choose(model) {
    if (this.#model && this.#model !== model && this.#turns.length) this.#between(aside(`Model changed to ${model}.`));
    this.#model = model;
    this.head.describe({ model });
  }

  #account() {
    this.head.account(sumUsage(this.#turns.map((turn) => turn.usage)), this.#turns.length);
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroll;
    const near = scrollHeight - scrollTop - clientHeight < NEAR_THE_END;
    // Only the user scrolls upwards; growing content, such as an arriving image, does not.
    if (near || scrollTop < this.#top) this.#pinned = near;
    this.#top = scrollTop;
    this.below.hidden = this.#pinned;
  }

  #scrollToEnd(force) {
    if (!this.#pinned && !force) {
      this.below.hidden = false;
      return;
    }
    this.scroll.scrollTop = this.scroll.scrollHeight;
  }

  /** @param {any} state of the connection */
  connected(state) {
    connection(state);
    if (state.state === "refused") return void this.#refused(state.problem);
    if (state.state !== "live") return;
    if (state.resumed) this.#turn?.skipped();
    this.refresh();
  }

  #refused(problem) {
    if (this.signal.aborted) return;
    if (NONE.has(problem.status)) this.element.replaceWith(conversationNotFound());
    else fill(this.log, problemBox(problem));
  }

  /** After a server crash, the turn is lost and sends no more events. */
  async refresh() {
    try {
      const now = await get(`v1/sessions/${this.id}`, this.signal);
      this.describe(now);
      if (this.#old === Number.POSITIVE_INFINITY) this.#old = now.busy || isFresh(this.id) ? now.turns - 1 : now.turns;
      this.#knows();
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
      if (this.signal.aborted || !this.busy || Date.now() - this.#heard < QUIET_MS) return;
      const session = await get(`v1/sessions/${this.id}`, this.signal);
      if (session.busy || !this.busy) return;
      this.#turn.cutOff();
      this.composer.busy = false;
    } catch {
      // The stream reports errors that matter.
      this.#knows();
    }
  }
}

function rebuilt({ why, cells, failed }) {
  const again = cells ? ` ${plural(cells, "cell")} ran again to restore its variables` : "";
  const now = failed ? `; ${failed} of them failed` : "";
  return `The interpreter was restarted (${why}).${again}${now}${again ? "." : ""}`;
}

const blank = () => h("div", { class: "blank" }, icon("chat"), h("p", {}, "This conversation is empty. Write a message below, or drop a file."));

/** @param {HTMLElement} main @param {string} id @param {AbortSignal} signal */
export function showConversation(main, id, signal) {
  const view = new Conversation(id, signal);
  view.log.append(blank());
  fill(main, view.element);
  if (!window.matchMedia("(pointer: coarse)").matches) view.composer.text.focus();
  const path = `v1/sessions/${id}/events`;
  follow(path, { onEvent: (event) => view.take(event), onState: (state) => view.connected(state) }, signal);
  signal.addEventListener("abort", () => connection({ state: "left" }));
  return { escape: () => view.stop() };
}
