/** Labels and colors for the state of a run and its attempts, shared by all views. */

import { h } from "./dom.js";

const LOOKS = {
  queued: ["Queued", "calm"],
  running: ["Running", "live"],
  accepted: ["Accepted", "good"],
  not_accepted: ["Not accepted", "bad"],
  out_of_budget: ["Out of budget", "warn"],
  tampered: ["Tampered", "bad"],
  interrupted: ["Interrupted", "calm"],
  cancelled: ["Cancelled", "calm"],
  failed: ["Failed", "bad"],
};
const GRADES = { proven: "Proven", checked: "Checked", ran: "Ran" };
const ACTIONS = {
  sample: "New attempt", hinted: "New attempt, told which tests are hard", repair: "Repair of an earlier attempt",
  fresh: "New attempt, told what was tried", combine: "Combination of two attempts",
};

export const isOver = (status) => !["queued", "running"].includes(status);
export const canResume = (status) => ["interrupted", "cancelled", "failed", "out_of_budget"].includes(status);
export const gradeWord = (grade) => GRADES[grade] ?? LOOKS.accepted[0];

/** Kinds of attempts. */
export const actionName = (action) => ACTIONS[action] ?? action ?? "";

export function statusWord(status, grade) {
  return GRADES[grade] ?? LOOKS[status]?.[0] ?? status;
}

export function statusBadge(status, grade) {
  const [, kind] = LOOKS[status] ?? [status, "calm"];
  return h("span", { class: `status ${kind}` }, h("span", { class: "status-dot", "aria-hidden": "true" }), statusWord(status, grade));
}

/** Meaning of each final status. */
export const MEANINGS = {
  proven: "Your own tests pass in a fresh sandbox, on an untouched copy, and inverted tests fail as they must. Anyone can verify the certificate.",
  checked: "Checks that failed on the untouched files pass now.",
  ran: "The program ran and exited without an error. No test decided.",
  not_accepted: "The independent check failed. The best state is shown below.",
  out_of_budget: "Budget exhausted. The best state is shown below.",
  tampered: "The best state tried to forge its proof and was rejected.",
  interrupted: "The run was interrupted. You can resume it.",
  cancelled: "The run was cancelled. You can resume it.",
  failed: "A part of Assay failed, not the work. You can resume the run.",
};
