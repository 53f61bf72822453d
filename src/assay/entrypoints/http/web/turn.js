/** One turn of a conversation: what a person said, and everything that came of it, told apart. */

import { exhibit } from "./artifacts.js";
import { codeBlock, copyButton, foldable } from "./blocks.js";
import { h, perFrame } from "./dom.js";
import { oneLine, plural, seconds, sumUsage, usageLine } from "./format.js";
import { icon } from "./icons.js";
import { Prose, prose } from "./prose.js";

const LONGEST_LIVE = 20_000;
const SHOWN_ELSEWHERE = /^\[(?:figure shown|table shown|wrote .{1,400}, \d+ bytes)\]$/;
const ENDINGS = {
  out_of_steps: "It ran out of steps before it came to an answer.",
  interrupted: "Interrupted.",
  failed: "It could not go on.",
};

export class Turn {
  #session;
  #again;
  #signal;
  #live = null;
  #said = "";
  #usages = [];
  #cell = null;
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
      h("div", { class: "asked" }, h("span", { class: "unseen" }, "You said: "), h("div", { class: "asked-text" }, message)),
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

  printed({ text }) {
    this.#said = (this.#said + text).slice(-LONGEST_LIVE);
    if (!this.#live?.output) {
      const output = h("pre", { class: "output-text" });
      const draw = perFrame(() => {
        output.textContent = this.#said;
      });
      const element = h("div", { class: "observation live" }, output, waiting("Running"));
      this.#replaceLive({ output, draw, element });
    }
    this.#live.draw();
  }

  cellBegan(event) {
    this.#usages.push(event.usage);
    this.#settle();
    this.#thought(event.thought);
    this.#cell = h("div", { class: "step cell running" }, codeBlock(event.code, "python", { label: label("Code") }));
    this.steps.append(this.#cell);
    this.#wait("Running", this.#cell);
  }

  cellEnded(event) {
    this.#settle();
    // A cell whose beginning was not seen is shown from its end.
    const cell = this.#cell ?? h("div", { class: "step cell" }, codeBlock(event.code, "python", { label: label("Code") }));
    if (!this.#cell) this.steps.append(cell);
    this.#cell = null;
    cell.classList.remove("running");
    cell.classList.toggle("failed", event.failed);
    const took = h("span", { class: "took" }, event.failed ? icon("warning") : null, event.failed ? "failed after " : "", seconds(event.duration_s));
    cell.querySelector(".code-name")?.after(took);
    cell.append(...this.#outcome(event));
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
    this.#settle();
    // The server has told after all how it ended.
    this.#cut?.remove();
    this.ended = true;
    this.steps.querySelectorAll(".running").forEach((cell) => cell.classList.remove("running"));
    const answered = event.status === "answered";
    if (!answered) this.steps.append(ending(ENDINGS[event.status] ?? event.status, event.text, event.status, this.#again));
    else {
      this.steps.append(h("div", { class: "step answer" }, h("span", { class: "unseen" }, "Answer: "), prose(event.text)));
    }
    this.steps.append(h("footer", { class: "turn-foot" },
      answered ? copyButton(() => event.text, "Copy the answer") : null,
      h("span", { class: "quiet" }, usageLine(this.usage))));
  }

  /** The server went away in the middle, and does not go on with it. */
  cutOff() {
    this.#settle();
    this.ended = true;
    this.#cut = ending("Cut off.", "The server was stopped while this was going on.", "interrupted", this.#again);
    this.steps.append(this.#cut);
  }

  note(element) {
    this.steps.append(element);
  }

  /** After a connection was lost the server tells again what the step has said so far. */
  skipped() {
    this.#said = "";
  }

  #thought(text) {
    if (!text) return;
    this.steps.append(h("div", { class: "step thought" }, label("Thought"), prose(text)));
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
    const head = h("div", { class: "output-head" }, label(failed ? "Error" : "Output"), copyButton(() => text, "Copy the output"));
    if (!tabled) return h("div", { class: `observation ${failed ? "failed" : ""}` }, head, foldable(output, text));
    // The same stands below as a table.
    const count = plural(text.split("\n").length, "line");
    return h("details", { class: "observation" }, h("summary", {}, icon("chevron"), label("Output"), h("span", { class: "quiet" }, `${count} as text`)), output);
  }

  #wait(doing, place = this.steps) {
    this.#said = "";
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
  }
}

const label = (text) => h("span", { class: "step-label" }, text);

const waiting = (doing) => h("div", { class: "waiting-line" }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), doing);

function ending(title, text, kind, again) {
  const said = text && text !== title ? h("p", {}, text) : null;
  return h("div", { class: `step ending ${kind}` }, icon(kind === "interrupted" ? "stop" : "warning"), h("div", {}, h("strong", {}, title), said),
    h("button", { type: "button", class: "button small", onclick: again }, "Ask again"));
}

/** Something that happened between turns. */
export function aside(text, more = "") {
  return h("p", { class: "aside" }, h("span", {}, text), more ? h("details", {}, h("summary", {}, "What is in it"), h("pre", {}, more)) : null);
}

