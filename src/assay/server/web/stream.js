/**
 * Live events: server-sent events over `fetch`, because `EventSource` cannot send a key. A broken
 * stream resumes after the last received event.
 */

import { anotherKey, apiKey, headersWithKey, problemOf, urlOf } from "./api.js";

const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 8000;
/** The server sends something every 15 s; a connection without data for this long is lost. */
const SILENCE_MS = 40_000;
/** Final status codes: a retry would get the same answer. */
const FINAL = new Set([400, 403, 404, 405, 410, 422]);

/** @typedef {{id: number | null, kind: string, data: any}} StreamEvent */

/**
 * Parses the text of a stream, in any pieces, into whole events.
 */
export class EventReader {
  #rest = "";
  #id = null;
  #kind = "";
  #data = [];

  /** @param {string} text @returns {StreamEvent[]} */
  read(text) {
    const events = [];
    let pending = this.#rest + text;
    // A carriage return at the very end may be half of a line break.
    const held = pending.endsWith("\r") ? "\r" : "";
    if (held) pending = pending.slice(0, -1);
    const lines = pending.split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + held;
    for (const line of lines) {
      const event = this.#line(line);
      if (event) events.push(event);
    }
    return events;
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#kind = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id") this.#id = /^\d+$/.test(value) ? Number(value) : null;
    return null;
  }

  #dispatch() {
    const [kind, data, id] = [this.#kind, this.#data.join("\n"), this.#id];
    const empty = this.#data.length === 0 && !kind;
    [this.#kind, this.#data, this.#id] = ["", [], null];
    if (empty) return null;
    try {
      return { id, kind: kind || "message", data: data ? JSON.parse(data) : {} };
    } catch {
      return null;
    }
  }
}

/**
 * @param {string} path
 * @param {object} listener
 * @param {(event: StreamEvent) => void} listener.onEvent
 * @param {(state: {state: "live" | "lost" | "ended" | "refused", inMs?: number, again?: () => void, problem?: any, resumed?: boolean}) => void} listener.onState
 * @param {AbortSignal} signal
 */
export async function follow(path, { onEvent, onState }, signal) {
  let last = null;
  let failures = 0;
  while (!signal.aborted) {
    const used = apiKey();
    const outcome = await once(path, last, signal, {
      onOpen: () => {
        onState({ state: "live", resumed: failures > 0 });
        failures = 0;
      },
      onEvent: (event) => {
        if (event.id !== null) last = event.id;
        try {
          onEvent(event);
        } catch (error) {
          // A bug of the view, not a lost connection: report it and continue.
          reportError(error);
        }
      },
    });
    if (signal.aborted) return;
    if (outcome.ended) return void onState({ state: "ended" });
    const status = outcome.problem?.status ?? 0;
    if (FINAL.has(status)) return void onState({ state: "refused", problem: outcome.problem });
    if (status === 401) {
      if (await anotherKey(used, outcome.problem)) continue;
      return void onState({ state: "refused", problem: outcome.problem });
    }
    const waitMs = (outcome.problem?.retryAfterS ?? 0) * 1000 || backoff(failures);
    failures += 1;
    await pause(waitMs, signal, (again) => onState({ state: "lost", inMs: waitMs, again, problem: outcome.problem }));
  }
}

/** Retry delay: doubled each time, with random jitter. */
export function backoff(failures, chance = Math.random()) {
  return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** failures) * (0.75 + chance / 2);
}

async function once(path, last, signal, { onOpen, onEvent }) {
  const attempt = new AbortController();
  const stop = () => attempt.abort();
  signal.addEventListener("abort", stop);
  let watch = setTimeout(stop, SILENCE_MS);
  try {
    const headers = headersWithKey({ Accept: "text/event-stream" });
    if (last !== null) headers["Last-Event-ID"] = String(last);
    const options = { headers, signal: attempt.signal, cache: "no-store", credentials: "omit" };
    const response = await fetch(urlOf(path), options);
    if (!response.ok) return { problem: await problemOf(response) };
    onOpen();
    const [reader, events, decoder] = [response.body.getReader(), new EventReader(), new TextDecoder()];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return {};
      clearTimeout(watch);
      watch = setTimeout(stop, SILENCE_MS);
      for (const event of events.read(decoder.decode(value, { stream: true }))) {
        if (event.kind === "end") return { ended: true };
        onEvent(event);
      }
    }
  } catch {
    return {};
  } finally {
    clearTimeout(watch);
    signal.removeEventListener("abort", stop);
    attempt.abort();
  }
}

/** Wait, unless the network returns, the page becomes visible, or the user retries. */
function pause(waitMs, signal, tell) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      document.removeEventListener("visibilitychange", seen);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const seen = () => document.visibilityState === "visible" && done();
    const timer = setTimeout(done, waitMs);
    window.addEventListener("online", done);
    document.addEventListener("visibilitychange", seen);
    signal.addEventListener("abort", done);
    tell(done);
  });
}
