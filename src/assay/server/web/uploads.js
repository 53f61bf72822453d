/** Uploads into the workspace of a session. */

import { encodePath, upload } from "./api.js";
import { announce } from "./notices.js";

/** File name for the workspace: no folders, and not hidden. */
export function plainName(name) {
  return name.replace(/[/\\\0]/g, "_").replace(/^\.+/, "_") || "file";
}

/**
 * @param {string} session
 * @param {File} file
 * @param {ReturnType<import("./composer.js").Composer["chip"]>} chip
 * @param {AbortSignal} signal
 * @returns {Promise<boolean>} whether it arrived
 */
export async function send(session, file, chip, signal) {
  try {
    const path = `v1/sessions/${session}/files/${encodePath(plainName(file.name))}`;
    await upload(path, file, chip.progress, signal);
    chip.done();
    announce(`${file.name} is in the workspace.`);
    return true;
  } catch (error) {
    if (error?.name !== "AbortError") {
      chip.failed(error);
      announce(`${file.name} could not be uploaded.`);
    }
    return false;
  }
}
