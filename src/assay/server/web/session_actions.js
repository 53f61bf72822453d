/** Actions on a whole session. */

import { patch, remove } from "./api.js";
import { askForText, complain, confirmed } from "./notices.js";
import { refreshSessions } from "./signals.js";

/** @returns {Promise<any>} the session with its new title; null if the title was kept */
export async function renameSession(id, title) {
  const name = await askForText({ title: "Rename this conversation", label: "Title", value: title, action: "Rename" });
  if (!name) return null;
  try {
    const session = await patch(`v1/sessions/${id}`, { title: name });
    refreshSessions();
    return session;
  } catch (error) {
    complain(error);
    return null;
  }
}

export async function deleteSession(id, title) {
  const text = `“${title}” is deleted with its files, figures and variables. This cannot be undone.`;
  if (!(await confirmed({ title: "Delete this conversation?", text, action: "Delete", danger: true }))) return;
  try {
    await remove(`v1/sessions/${id}`);
    if (location.hash === `#/s/${id}`) location.hash = "#/";
    refreshSessions();
  } catch (error) {
    complain(error);
  }
}
