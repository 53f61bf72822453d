/** How a run stands, in a word and a colour. */

import { h } from "./dom.js";

const LOOKS = {
  queued: ["Waiting", "calm"],
  running: ["Running", "live"],
  accepted: ["Accepted", "good"],
  not_accepted: ["Not accepted", "bad"],
  out_of_budget: ["Out of budget", "warn"],
  tampered: ["Tampered", "bad"],
  interrupted: ["Stopped", "calm"],
  cancelled: ["Stopped", "calm"],
  failed: ["Failed", "bad"],
};
const GRADES = { proven: "Proven", checked: "Checked", ran: "Ran" };

export const isOver = (status) => !["queued", "running"].includes(status);
export const canResume = (status) => ["interrupted", "cancelled", "failed", "out_of_budget"].includes(status);

export function statusWord(status, grade) {
  return GRADES[grade] ?? LOOKS[status]?.[0] ?? status;
}

export function statusBadge(status, grade) {
  const [, kind] = LOOKS[status] ?? [status, "calm"];
  return h("span", { class: `status ${kind}` }, h("span", { class: "status-dot", "aria-hidden": "true" }), statusWord(status, grade));
}

/** What each ending means, for those who see it for the first time. */
export const MEANINGS = {
  proven: "Your own tests pass, in a fresh sandbox, on a pristine copy, with tests that had to fail and did. The certificate says so, and anybody can prove it again.",
  checked: "Checks that failed on the untouched files pass now.",
  ran: "It was run and ended well. No test has decided.",
  not_accepted: "The independent check does not hold. The best state that was reached is kept below.",
  out_of_budget: "Its means were used up first. The best state that was reached is kept below.",
  tampered: "The best that was offered tried to forge its proof, so it was refused.",
  interrupted: "It was stopped, and can be resumed.",
  cancelled: "It was stopped, and can be resumed.",
  failed: "A part of Assay, not the work, ended it. It can be resumed.",
};
