/** View of one turn: the user's message, and everything that followed. */

import { exhibit } from "./artifacts.js";
import { codeBlock, copyButton, foldable } from "./blocks.js";
import { h, perFrame } from "./dom.js";
import { oneLine, plural, seconds, sumUsage, usageLine } from "./format.js";
import { icon } from "./icons.js";
import { Prose, prose } from "./prose.js";

const LONGEST_LIVE = 20_000;
const SHOWN_ELSEWHERE = /^\[(?:figure shown|table shown|wrote .{1,400}, \d+ bytes)\]$/;
/** Last line of the server's text about a stopped cell. */
const INTERRUPTED = /(?:^|\n)The cell was interrupted\.\s*$/;
const ENDINGS = {
  out_of_steps: "The step limit was reached before an answer.",
  interrupted: "Stopped.",
  failed: "The turn failed.",
};

/** Code within text never ran, unlike that of cells. */
const EXAMPLES = { note: "example, not run" };

export class Turn {
  #session;
  #again;
  #signal;
  #live = null;
  #said = "";
  #kept = "";
  #usages = [];
  #cell = null;
  #last = null;
  #cut = null;

  /**
   * @param {string} session
   * @param {{turn: number, message: string}} began
   * @param {{signal: AbortSignal, onAgain: (message: string) => void}} life
   */
  constructor(session, { turn, message }, { signal, onAgain }) {
    this.number = turn;
    this.message = message;
    this.ended = false;
    this.#session = session;
    this.#again = () => onAgain(message);
    this.#signal = signal;
    this.steps = h("div", { class: "steps" });
    this.element = h(
      "article", { class: "turn", "aria-label": `Turn ${turn}` },
      h("div", { class: "asked" }, h("span", { class: "unseen" }, "You: "), h("div", { class: "asked-text" }, message)),
      this.steps,
    );
    this.#wait("Thinking");
  }

  get usage() {
    return sumUsage(this.#usages);
  }

  speech({ text }) {
    this.#said += text;
    if (!this.#live?.prose) {
      const live = { prose: new Prose() };
      live.element = h("div", { class: "step live" }, live.prose.element, waiting("Writing"));
      live.draw = perFrame(() => live.prose.show(this.#said));
      this.#replaceLive(live);
    }
    this.#live.draw();
  }

  /** @param {{text: string}} event @param {boolean} kept whether the server has stored it, and sends it only once */
  printed({ text }, kept) {
    if (kept) this.#kept += text;
    else this.#said = (this.#said + text).slice(-LONGEST_LIVE);
    if (!this.#live?.output) {
      const output = h("pre", { class: "output-text", tabindex: "0", "aria-label": "Output" });
      const draw = perFrame(() => {
        output.textContent = this.#printed;
      });
      const element = h("div", { class: "observation live" }, this.#outputHead("Output", () => this.#printed), output, waiting("Running"));
      this.#replaceLive({ output, draw, element });
    }
    this.#live.draw();
  }

  get #printed() {
    return (this.#kept + this.#said).slice(-LONGEST_LIVE);
  }

  /** The interpreter restarts before the next cell. */
  restoring({ cell, cells }) {
    this.#wait(`Restoring variables: cell ${cell} of ${cells}`);
  }

  cellBegan(event) {
    this.#usages.push(event.usage);
    this.#settle();
    this.#thought(event.thought);
    this.#cell = h("div", { class: "step cell running" }, codeBlock(event.code, "python", { label: label("Code") }));
    this.steps.append(this.#cell);
    this.#thought(event.remark);
    this.#wait("Running", this.#cell);
  }

  cellEnded(event) {
    this.#settle();
    // A cell without a start event is shown from its end.
    const cell = this.#cell ?? h("div", { class: "step cell" }, codeBlock(event.code, "python", { label: label("Code") }));
    if (!this.#cell) this.steps.append(cell);
    this.#cell = null;
    cell.classList.remove("running");
    cell.classList.toggle("failed", event.failed);
    tell(cell, event.failed ? icon("warning") : null, `${event.failed ? "failed after" : "ran"} ${seconds(event.duration_s)}`);
    cell.append(...this.#outcome(event));
    this.#last = { cell, event };
    this.#wait("Thinking");
  }

  tool(event) {
    this.#usages.push(event.usage);
    this.#settle();
    this.#thought(event.thought);
    this.steps.append(h(
      "details", { class: `step tool ${event.failed ? "failed" : ""}` },
      h("summary", {}, icon("chevron"), h("span", { class: "step-label" }, "Tool"), h("code", {}, event.tool),
        h("span", { class: "quiet cut" }, oneLine(event.arguments, 90))),
      h("pre", { class: "output-text", tabindex: "0" }, event.answer),
    ));
    this.#wait("Thinking");
  }

  end(event) {
    this.#usages.push(event.usage);
    this.#stopCell();
    if (event.status === "interrupted") this.#relabelStopped();
    this.#settle();
    // The server did report an end, so remove the notice.
    this.#cut?.remove();
    this.ended = true;
    const answered = event.status === "answered";
    if (!answered) this.steps.append(ending(ENDINGS[event.status] ?? event.status, event.text, event.status, this.#again));
    else {
      this.steps.append(h("div", { class: "step answer" }, h("span", { class: "unseen" }, "Answer: "), prose(event.text, EXAMPLES)));
    }
    this.steps.append(h("footer", { class: "turn-foot" },
      answered ? copyButton(() => event.text, "Copy the answer") : null,
      h("span", { class: "quiet" }, usageLine(this.usage))));
  }

  /** The server stopped during the turn, and does not continue it. */
  cutOff() {
    this.#stopCell();
    this.#settle();
    this.ended = true;
    this.#cut = ending("Stopped.", "The server stopped during this turn.", "interrupted", this.#again);
    this.steps.append(this.#cut);
  }

  note(element) {
    this.steps.append(element);
  }

  /** After a lost connection the server repeats the text of the step, except stored events. */
  skipped() {
    this.#said = "";
  }

  #thought(text) {
    if (!text) return;
    this.steps.append(h("div", { class: "step thought" }, label("Thought"), prose(text, EXAMPLES)));
  }

  /** A cell that was running at the turn's end was stopped; its output stays. */
  #stopCell() {
    const cell = this.#cell;
    if (!cell) return;
    this.#cell = null;
    cell.classList.remove("running");
    tell(cell, "stopped");
    const text = this.#printed.trim();
    if (text) cell.append(this.#output(text, false, false));
  }

  /** A cell that was interrupted with its turn was stopped; it has not failed. */
  #relabelStopped() {
    const { cell, event } = this.#last ?? {};
    if (!event?.failed || !INTERRUPTED.test(event.observation)) return;
    cell.classList.remove("failed");
    cell.querySelectorAll(".took, .observation, .exhibits").forEach((part) => part.remove());
    tell(cell, "stopped");
    cell.append(...this.#outcome({ ...event, failed: false, observation: event.observation.replace(INTERRUPTED, "") }));
  }

  #outcome(event) {
    const tables = event.artifacts.filter((artifact) => artifact.source === "table");
    const lines = event.observation.split("\n");
    const elsewhere = event.artifacts.length > 0;
    const text = lines.filter((line) => !(elsewhere && SHOWN_ELSEWHERE.test(line))).join("\n").trim();
    const parts = [];
    if (text) parts.push(this.#output(text, event.failed, tables.length > 0));
    if (elsewhere) {
      parts.push(h("div", { class: "exhibits" }, event.artifacts.map((artifact) => exhibit(this.#session, artifact, this.#signal))));
    }
    return parts;
  }

  #output(text, failed, tabled) {
    const output = h("pre", { class: "output-text", tabindex: "0", "aria-label": "Output" }, text);
    const head = this.#outputHead(failed ? "Error" : "Output", () => text);
    if (!tabled) return h("div", { class: `observation ${failed ? "failed" : ""}` }, head, foldable(output, text));
    // A table below shows the same.
    const count = plural(text.split("\n").length, "line");
    return h("details", { class: "observation" }, h("summary", {}, icon("chevron"), label("Output"), h("span", { class: "quiet" }, `${count} as text`)), output);
  }

  #outputHead(title, read) {
    return h("div", { class: "output-head" }, label(title), copyButton(read, "Copy the output"));
  }

  #wait(doing, place = this.steps) {
    this.#said = "";
    this.#kept = "";
    this.#replaceLive({ element: h("div", { class: "live" }, waiting(doing)) }, place);
  }

  #replaceLive(live, place = null) {
    const old = this.#live?.element;
    const home = place ?? old?.parentNode ?? this.steps;
    old?.remove();
    home.append(live.element);
    this.#live = live;
  }

  #settle() {
    this.#live?.element.remove();
    this.#live = null;
    this.#said = "";
    this.#kept = "";
  }
}

/** Show how the cell's execution ended, beside its name. */
const tell = (cell, ...words) => cell.querySelector(".code-name")?.after(h("span", { class: "took" }, words));

const label = (text) => h("span", { class: "step-label" }, text);

const waiting = (doing) => h("div", { class: "waiting-line" }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), doing);

function ending(title, text, kind, again) {
  const said = text && text !== title ? h("p", {}, text) : null;
  return h("div", { class: `step ending ${kind}` }, icon(kind === "interrupted" ? "stop" : "warning"), h("div", {}, h("strong", {}, title), said),
    h("button", { type: "button", class: "button small", onclick: again }, "Ask again"));
}

/** A note between turns. */
export function aside(text, more = "") {
  return h("p", { class: "aside" }, h("span", {}, text), more ? h("details", {}, h("summary", {}, "Details"), h("pre", {}, more)) : null);
}

