/** Line icons, 24 by 24. */

import { s } from "./dom.js";

const PATHS = {
  plus: ["M12 5v14", "M5 12h14"],
  menu: ["M4 7h16", "M4 12h16", "M4 17h16"],
  close: ["M6 6l12 12", "M18 6 6 18"],
  send: ["M12 19V5", "M5 12l7-7 7 7"],
  stop: ["M7 7h10v10H7z"],
  clip: ["M20 11.5 12 19.4a5.3 5.3 0 0 1-7.5-7.5l8.3-8.2a3.5 3.5 0 0 1 5 5l-8.3 8.2a1.8 1.8 0 0 1-2.5-2.5l7.6-7.5"],
  copy: ["M9 9h11v11H9z", "M5 15H4V4h11v1"],
  check: ["M5 12.5 10 17.5 19.5 7"],
  undo: ["M4 9h10a6 6 0 0 1 0 12h-3", "M8 5 4 9l4 4"],
  download: ["M12 4v11", "M7 11l5 5 5-5", "M4 20h16"],
  more: ["M5 11a1 1 0 1 0 0 2 1 1 0 0 0 0-2z", "M12 11a1 1 0 1 0 0 2 1 1 0 0 0 0-2z", "M19 11a1 1 0 1 0 0 2 1 1 0 0 0 0-2z"],
  trash: ["M4 7h16", "M9 7V4h6v3", "M6 7l1 13h10l1-13"],
  pencil: ["M4 20l1-5L16.5 3.5l4 4L9 19z"],
  search: ["M11 18a7 7 0 1 1 0-14 7 7 0 0 1 0 14z", "M16 16l5 5"],
  sun: ["M12 16.5a4.5 4.5 0 1 1 0-9 4.5 4.5 0 0 1 0 9z", "M12 2v2", "M12 20v2", "M2 12h2", "M20 12h2", "M4.9 4.9l1.4 1.4", "M17.7 17.7l1.4 1.4", "M4.9 19.1l1.4-1.4", "M17.7 6.3l1.4-1.4"],
  moon: ["M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z"],
  auto: ["M12 3a9 9 0 1 0 0 18z", "M12 3a9 9 0 0 1 0 18"],
  sliders: ["M4 7h9", "M17 7h3", "M15 5v4", "M4 17h3", "M11 17h9", "M9 15v4"],
  chat: ["M4 5h16v11H10l-5 4v-4H4z"],
  flag: ["M6 21V4h12l-3 4.5L18 13H6"],
  file: ["M6 3h8l4 4v14H6z", "M14 3v4h4"],
  image: ["M4 5h16v14H4z", "M4 16l5-5 4 4 3-3 4 4", "M15 9h.01"],
  seal: ["M12 15a6 6 0 1 1 0-12 6 6 0 0 1 0 12z", "M8.5 14 7 21l5-2.5L17 21l-1.5-7", "M9.5 9l2 2 3-3.5"],
  retry: ["M20 11a8 8 0 0 0-14-4L4 9", "M4 4v5h5", "M4 13a8 8 0 0 0 14 4l2-2", "M20 20v-5h-5"],
  chevron: ["M9 6l6 6-6 6"],
  key: ["M14 10a4 4 0 1 1-4-4 4 4 0 0 1 4 4z", "M13 13l7 7", "M17 17l2-2"],
  warning: ["M12 4 2.5 20h19z", "M12 10v5", "M12 17.5h.01"],
  help: ["M12 21a9 9 0 1 1 0-18 9 9 0 0 1 0 18z", "M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7", "M12 16.5h.01"],
};

/** @param {keyof typeof PATHS} name */
export function icon(name) {
  return s(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    PATHS[name].map((d) => s("path", { d })),
  );
}

/** Logo of Assay: a touchstone with the streak that gold leaves on it. */
export function mark() {
  return s(
    "svg",
    { class: "mark", viewBox: "0 0 32 32", "aria-hidden": "true", focusable: "false" },
    s("rect", { class: "mark-stone", width: "32", height: "32", rx: "8" }),
    s("path", { class: "mark-streak", d: "M7 23.5 23.5 7", "stroke-width": "4.5" }),
    s("path", { class: "mark-streak mark-faint", d: "M14.5 25 25 14.5", "stroke-width": "2" }),
  );
}
