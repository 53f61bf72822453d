/** View of one run: its state, test results, attempts, changes and cost. */

import { download, get, post, remove } from "./api.js";
import { Attempt } from "./attempts.js";
import { budgetView } from "./budget.js";
import { diffView } from "./diff.js";
import { fill, h, perFrame } from "./dom.js";
import { oneLine } from "./format.js";
import { icon } from "./icons.js";
import { testMatrixView } from "./test_matrix.js";
import { menu, menuButton } from "./menu.js";
import { announce, complain, confirmed, connection, problemBox } from "./notices.js";
import { RunLog } from "./run_log.js";
import { sidebarButton } from "./signals.js";
import { runNotFound } from "./state_views.js";
import { MEANINGS, canResume, isOver, statusBadge, statusWord } from "./statuses.js";
import { follow } from "./stream.js";

const DELAY_MS = 250;
/** Status codes for a name without a run, or an invalid name. */
const NONE = new Set([404, 410, 422]);
const PASSING = new Set(["text_delta", "output_delta"]);

const card = (title, ...inside) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title), inside);

class Run {
  #attempts = new Map();
  #drawn = new Map();
  #waiting = null;
  #ticking = null;
  #status = "";
  #following = false;
  #seen = 0;

  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.title = h("h1", { class: "head-title" }, "Run");
    this.status = h("span", { class: "head-status" });
    this.actions = h("span", { class: "head-actions" });
    this.outcome = h("div", {});
    this.test_matrix = h("div", {});
    this.attempts = h("div", { class: "attempts" });
    this.changes = h("div", {}, h("p", { class: "quiet" }, "No changes yet."));
    this.budget = h("div", {});
    this.plan = h("div", {}, h("p", { class: "quiet" }, "No plan yet."));
    this.asked = h("div", {});
    this.events = new RunLog();
    this.element = this.#layout();
    this.drawBudget = perFrame((budget) => fill(this.budget, budgetView(budget)));
  }

  #layout() {
    return h(
      "section", { class: "page run" },
      h("header", { class: "head" }, sidebarButton(), h("div", { class: "head-words" }, this.title, h("div", { class: "head-facts" }, this.status)), this.actions),
      h("div", { class: "run-body" },
        h("div", { class: "run-main" }, this.outcome, card("Test results by attempt", this.test_matrix), card("Attempts", this.attempts), card("Changes", this.changes), card("Events", this.events.element)),
        h("div", { class: "run-side" }, card("Budget", this.budget), card("Plan", this.plan), card("Goal", this.asked))),
    );
  }

  /** @param {any} run as the server describes it */
  describe(run) {
    const goal = oneLine(run.goal, 160);
    document.title = `${goal} · Assay`;
    this.title.textContent = goal;
    this.title.title = run.goal;
    this.#draw(this.status, [run.status, run.grade, run.model], () => [statusBadge(run.status, run.grade), h("span", { class: "quiet" }, run.model)]);
    this.#draw(this.plan, [run.plan, isOver(run.status)], () => planView(run.plan, isOver(run.status)));
    this.#draw(this.test_matrix, run.test_matrix, () => testMatrixView(run.test_matrix, this.signal));
    this.#draw(this.asked, [run.goal, run.checks], () => [h("p", { class: "goal-text", tabindex: "0" }, run.goal),
      run.checks.length ? h("h3", {}, run.checks.length > 1 ? "Check commands" : "Check command") : null, run.checks.map((check) => h("p", {}, h("code", {}, check)))]);
    this.#draw(this.actions, run.status, () => this.#buttons(run));
    this.#draw(this.outcome, [run.status, run.grade, run.reason, run.certificate, run.error], () => (isOver(run.status) ? this.#outcome(run) : null));
    this.#clock(run);
    if (isOver(run.status) && this.#status !== run.status) this.#finish(run);
    this.#status = run.status;
    this.follow();
  }

  /** Redraw only what has changed, so that open menus and the focus stay. */
  #draw(place, facts, make) {
    const told = JSON.stringify(facts);
    if (this.#drawn.get(place) === told) return;
    this.#drawn.set(place, told);
    fill(place, make());
  }

  /** The clock advances without requests. */
  #clock(run) {
    clearInterval(this.#ticking);
    this.drawBudget(run.budget);
    if (run.status !== "running") return;
    const { used, limit } = run.budget.wall_s;
    const since = Date.now();
    this.#ticking = setInterval(() => {
      if (this.signal.aborted) return void clearInterval(this.#ticking);
      this.drawBudget({ ...run.budget, wall_s: { used: used + (Date.now() - since) / 1000, limit } });
    }, 1000);
  }

  #buttons(run) {
    const more = menu("More", [menuButton("trash", "Delete this run", () => this.delete(), "danger")]);
    if (!isOver(run.status)) return [h("button", { type: "button", class: "button small", onclick: () => this.cancel() }, icon("stop"), "Stop"), more];
    const again = canResume(run.status) ? h("button", { type: "button", class: "button small", onclick: () => this.resume() }, icon("retry"), "Resume") : null;
    return [again, more];
  }

  #outcome(run) {
    const good = run.status === "accepted";
    const word = statusWord(run.status, run.grade);
    const save = () => download(`v1/runs/${this.id}/certificate`, `${this.id}.certificate.json`).catch(complain);
    return h(
      "div", { class: `outcome ${good ? "good" : "bad"}` }, icon(good ? "seal" : "warning"),
      h("div", { class: "outcome-words" }, h("h2", {}, word), run.reason ? h("p", {}, run.reason) : null,
        run.error && run.error !== run.reason ? h("p", {}, run.error) : null,
        h("p", { class: "quiet" }, MEANINGS[run.grade] ?? MEANINGS[run.status] ?? "")),
      run.certificate ? h("button", { type: "button", class: "button primary", onclick: save }, icon("download"), "Certificate") : null,
    );
  }

  async #finish(run) {
    if (this.#status) announce(`The run has ended: ${statusWord(run.status, run.grade)}.`);
    try {
      const { diff } = await get(`v1/runs/${this.id}/diff`, this.signal);
      fill(this.changes, diffView(diff));
    } catch (error) {
      if (error.status !== 404 && !this.signal.aborted) fill(this.changes, problemBox(error));
    }
  }

  async load() {
    try {
      this.describe(await get(`v1/runs/${this.id}`, this.signal));
    } catch (error) {
      if (this.signal.aborted || this.#status) return;
      if (NONE.has(error.status)) this.element.replaceWith(runNotFound());
      else fill(this.outcome, problemBox(error, () => this.load()));
    }
  }

  /** Many events arrive together; one request answers all of them. */
  loadSoon() {
    clearTimeout(this.#waiting);
    this.#waiting = setTimeout(() => !this.signal.aborted && this.load(), DELAY_MS);
  }

  follow() {
    if (this.#following) return;
    this.#following = true;
    const onState = (state) => {
      connection(state);
      if (state.state === "live" && state.resumed) this.loadSoon();
      if (state.state === "ended") this.#following = isOver(this.#status) ? this.#following : false;
      if (state.state === "ended" || state.state === "refused") this.loadSoon();
    };
    follow(`v1/runs/${this.id}/events`, { onEvent: (event) => this.take(event), onState }, this.signal);
  }

  #attempt(number, action) {
    let attempt = this.#attempts.get(number);
    if (!attempt) {
      attempt = new Attempt(number, action);
      if (!isOver(this.#status)) this.#unfold(attempt);
      this.#attempts.set(number, attempt);
      this.attempts.append(attempt.element);
    }
    return attempt;
  }

  /** Open the running attempt, and close the one before it. */
  #unfold(attempt) {
    const before = [...this.#attempts.values()].at(-1);
    if (before) before.element.open = false;
    attempt.element.open = true;
  }

  /** @param {import("./stream.js").StreamEvent} event */
  take({ id, kind, data }) {
    // A resumed run is followed from its beginning: skip events that were shown.
    if (id !== null && id <= this.#seen) return;
    this.#seen = id ?? this.#seen;
    const attempt = data.attempt === undefined ? null : this.#attempt(data.attempt, data.action);
    const acts = {
      attempt_started: () => this.#attempts.get(0)?.says("Done", "calm"),
      text_delta: () => attempt.arrived(data.text, false),
      output_delta: () => attempt.arrived(data.text, true),
      model_replied: () => attempt.replied(data),
      tool_answered: () => attempt.tool(data),
      checks_written: () => this.#attempt(0).checks(data),
      files_changed: () => this.#changed(attempt, data),
      screened: () => attempt.screened(data),
      executed: () => attempt.executed(data),
      verified: () => attempt.verified(data),
      rolled_back: () => attempt.rolledBack(data),
      reflected: () => attempt.reflected(data),
    };
    acts[kind]?.();
    if (PASSING.has(kind)) return;
    this.events.take(kind, data);
    this.loadSoon();
  }

  #changed(attempt, data) {
    attempt.changed(data);
    if (!isOver(this.#status)) fill(this.changes, h("p", { class: "quiet" }, `State of attempt ${data.attempt}:`), diffView(data.diff));
  }

  async cancel() {
    await post(`v1/runs/${this.id}/cancel`).then(() => this.loadSoon()).catch(complain);
  }

  async resume() {
    try {
      await post(`v1/runs/${this.id}/resume`);
      this.#following = false;
      this.#status = "running";
      this.loadSoon();
    } catch (error) {
      complain(error);
    }
  }

  async delete() {
    const text = "Its events, files and certificate are deleted. This cannot be undone.";
    if (!(await confirmed({ title: "Delete this run?", text, action: "Delete", danger: true }))) return;
    await remove(`v1/runs/${this.id}`).then(() => { location.hash = "#/runs"; }).catch(complain);
  }
}

function planView(plan, over) {
  if (!plan.length) return h("p", { class: "quiet" }, over ? "No plan." : "No plan yet.");
  const steps = plan.map(({ text, done }) => h("li", { class: done ? "done" : null }, h("span", { class: "plan-box", role: "img", "aria-label": done ? "done" : "to do" }, done ? icon("check") : null), h("span", {}, text)));
  return h("ol", { class: "plan" }, steps);
}

/** @param {HTMLElement} main @param {string} id @param {AbortSignal} signal */
export function showRun(main, id, signal) {
  const view = new Run(id, signal);
  fill(main, view.element);
  view.load();
  signal.addEventListener("abort", () => connection({ state: "left" }));
  return {};
}

