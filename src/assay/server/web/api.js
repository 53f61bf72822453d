/** HTTP client for the API: requests with the key, JSON answers, failures as `Problem`. */

import { askForKey } from "./key_dialog.js";

const KEY = "assay.key";
const SIGNED = "assay:signed";
let keyInMemory = null;
let signedOut = false;

/** Whether the server requires a key and the user has given no valid one. */
export const isSignedOut = () => signedOut;
export const onSigned = (act) => document.addEventListener(SIGNED, act);

function setSignedOut(out) {
  signedOut = out;
  document.dispatchEvent(new CustomEvent(SIGNED));
}

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

/** Stored for this tab only, until it is closed. */
function setApiKey(key) {
  keyInMemory = key || null;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // The browser may deny storage; the key then lasts as long as the page.
  }
}

/** Forget the key. */
export function signOut() {
  setApiKey("");
  setSignedOut(true);
}

/** Try a key; keep it if the server accepts it. @returns {Promise<Problem | null>} reason of a rejection */
export async function signIn(key) {
  const before = apiKey();
  setApiKey(key);
  try {
    await request("GET", "v1/me", { ask: false });
  } catch (problem) {
    setApiKey(before);
    return problem;
  }
  setSignedOut(false);
  return null;
}

/** Reason of a failed request: the server rejected it, or could not be reached. */
export class Problem extends Error {
  constructor({ title, status = 0, detail = "", hint = "", type = "", request_id = "", errors = [] }, retryAfterS = null) {
    super(detail || title || "The request failed.");
    this.title = title || "The request failed";
    this.status = status;
    this.detail = detail === title ? "" : detail;
    this.hint = hint ?? "";
    this.type = type;
    this.requestId = request_id ?? "";
    /** Errors in single fields of the request. */
    this.errors = Array.isArray(errors) ? errors : [];
    /** Seconds before a retry; null if the server named none. */
    this.retryAfterS = retryAfterS;
  }

  static unreachable() {
    return new Problem({
      title: "The server does not answer",
      detail: "It may be restarting, or the network may be down.",
      hint: "Finished work is not lost. This page continues once the server is back.",
    });
  }
}

export const urlOf = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

export function headersWithKey(more = {}) {
  const key = apiKey();
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

/** Read the error object of a rejected request. */
export async function problemOf(response) {
  const after = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  let said = {};
  try {
    said = await response.json();
    // OpenAI-compatible endpoints answer in the format of OpenAI's API.
    if (typeof said.error?.message === "string") said = { detail: said.error.message, type: said.error.code };
  } catch {
    // A program other than Assay answered, such as a proxy.
  }
  const title = typeof said.title === "string" ? said.title : `The server answered ${response.status}`;
  return new Problem(
    { ...said, title, status: response.status, request_id: said.request_id ?? response.headers.get("X-Request-Id") },
    Number.isFinite(after) ? after : null,
  );
}

/**
 * @param {string} method
 * @param {string} path from the root of the API
 * @param {{json?: any, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal, ask?: boolean}} [options]
 *   `ask: false`: a missing or wrong key is an error, and the user is not asked for another
 * @returns {Promise<Response>}
 */
export async function request(method, path, options = {}) {
  const { json, signal } = options;
  for (;;) {
    const used = apiKey();
    const headers = headersWithKey({ Accept: "application/json", ...options.headers });
    if (json !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      const body = json === undefined ? options.body : JSON.stringify(json);
      response = await fetch(urlOf(path), { method, headers, body, signal, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw Problem.unreachable();
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401 || options.ask === false || !(await anotherKey(used, problem))) throw problem;
  }
}

/**
 * Ask the user once for all waiting requests; true if there is another key to try. A user who gives
 * none is signed out, and later requests do not ask again.
 */
export async function anotherKey(used, problem) {
  if (signedOut) return false;
  if (apiKey() !== used) return true;
  const key = await askForKey(used ? problem.detail || "Invalid or revoked API key." : "");
  if (key) setApiKey(key);
  else if (!signedOut) setSignedOut(true);
  return Boolean(key);
}

async function asJson(response) {
  return response.status === 204 ? null : response.json();
}

export const get = async (path, signal) => asJson(await request("GET", path, { signal }));
export const post = async (path, json = {}) => asJson(await request("POST", path, { json }));
export const patch = async (path, json) => asJson(await request("PATCH", path, { json }));
export const remove = (path) => request("DELETE", path);
export const getBlob = async (path, signal) =>
  (await request("GET", path, { signal, headers: { Accept: "*/*" } })).blob();

/** Encode each part of a path, so that a name with `?` or `#` stays a name. */
export const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");

/**
 * Send a file, and report the progress. `fetch` cannot report it, so this uses `XMLHttpRequest`.
 *
 * @param {string} path
 * @param {Blob} file
 * @param {(share: number) => void} onProgress
 * @param {AbortSignal} [signal]
 */
export function upload(path, file, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("PUT", urlOf(path));
    for (const [name, value] of Object.entries(headersWithKey())) sending.setRequestHeader(name, value);
    sending.setRequestHeader("Content-Type", "application/octet-stream");
    sending.upload.addEventListener("progress", (event) => onProgress(event.loaded / (event.total || 1)));
    sending.addEventListener("load", async () => {
      const headers = new Headers();
      for (const name of ["Retry-After", "X-Request-Id"]) {
        const value = sending.getResponseHeader(name);
        if (value) headers.set(name, value);
      }
      const response = new Response(sending.responseText || "{}", { status: sending.status, headers });
      if (response.ok) resolve(await response.json());
      else reject(await problemOf(response));
    });
    sending.addEventListener("error", () => reject(Problem.unreachable()));
    sending.addEventListener("abort", () => reject(new DOMException("cancelled", "AbortError")));
    signal?.addEventListener("abort", () => sending.abort());
    sending.send(file);
  });
}

/** Fetch with the key, then pass the file to the browser: a plain link could not send the key. */
export async function download(path, name) {
  const blob = await getBlob(path);
  const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
