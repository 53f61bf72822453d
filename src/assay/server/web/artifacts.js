/** Artifacts of a cell: figures and tables inline, other files as downloads. */

import { download, encodePath, getBlob } from "./api.js";
import { copyButton, tableOf } from "./blocks.js";
import { fill, h } from "./dom.js";
import { bytes, plural } from "./format.js";
import { readTable } from "./html_tables.js";
import { icon } from "./icons.js";
import { complain, open } from "./notices.js";

/** Media types that a browser shows without running code. An SVG can contain a program. */
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const LARGEST_TABLE = 4_000_000;

const addressOf = (session, artifact) => `v1/sessions/${session}/artifacts/${encodePath(artifact.name)}`;

/**
 * @param {string} session
 * @param {any} artifact
 * @param {AbortSignal} signal frees what was fetched
 */
export function exhibit(session, artifact, signal) {
  if (PICTURES.has(artifact.media_type)) return figure(session, artifact, signal);
  if (artifact.source === "table" && artifact.size_bytes < LARGEST_TABLE) return table(session, artifact, signal);
  return chip(session, artifact);
}

function figure(session, artifact, signal) {
  const place = h("div", { class: "picture waiting" });
  const made = h("figure", { class: "exhibit" }, place,
    h("figcaption", {}, artifact.path || artifact.name, saveButton(session, artifact)));
  fetched(session, artifact, signal).then((blob) => {
    // The page sets the type, not the server: any bytes are shown as an image.
    const address = URL.createObjectURL(new Blob([blob], { type: artifact.media_type }));
    signal.addEventListener("abort", () => URL.revokeObjectURL(address));
    const alt = `Figure ${artifact.path || artifact.name}, made by the code above`;
    const image = h("img", { src: address, alt, decoding: "async" });
    const enlarge = h("button", { type: "button", class: "enlarge", "aria-label": `Enlarge: ${alt}` }, image);
    enlarge.addEventListener("click", () => lightbox(address, alt));
    image.addEventListener("error", () => fill(place, h("p", { class: "quiet" }, "This file is not a picture that can be shown.")));
    place.classList.remove("waiting");
    fill(place, enlarge);
  }).catch((error) => failed(place, error));
  return made;
}

function lightbox(address, alt) {
  const close = h("button", { class: "icon-button lightbox-close", "aria-label": "Close" }, icon("close"));
  open(h("dialog", { class: "lightbox", "aria-label": alt }, h("form", { method: "dialog" }, close), h("img", { src: address, alt })));
}

function table(session, artifact, signal) {
  const place = h("div", { class: "waiting" });
  const made = h("figure", { class: "exhibit table-exhibit" }, place);
  fetched(session, artifact, signal).then(async (blob) => {
    const read = readTable(await blob.text());
    if (!read) return void made.replaceWith(chip(session, artifact));
    const lines = () => [read.head, ...read.rows].map((row) => row.join("\t")).join("\n");
    const size = `${plural(read.rows.length, "row")} × ${plural(read.head.length - read.index || read.head.length, "column")}`;
    place.classList.remove("waiting");
    fill(place, tableOf(read));
    made.append(h("figcaption", {}, size, copyButton(lines, "Copy the table")));
  }).catch((error) => failed(place, error));
  return made;
}

function chip(session, artifact) {
  const name = artifact.path || artifact.name;
  return h("button", {
    type: "button", class: "chip", onclick: () => download(addressOf(session, artifact), artifact.name).catch(complain),
  }, icon("file"), h("span", { class: "unseen" }, "Download "), h("span", { class: "chip-name" }, name), " ", h("span", { class: "quiet" }, bytes(artifact.size_bytes)), icon("download"));
}

function saveButton(session, artifact) {
  const save = () => download(addressOf(session, artifact), artifact.name).catch(complain);
  return h("button", { type: "button", class: "icon-button", "aria-label": `Download ${artifact.name}`, title: "Download", onclick: save }, icon("download"));
}

const fetched = (session, artifact, signal) => getBlob(addressOf(session, artifact), signal);

function failed(place, error) {
  if (error?.name === "AbortError") return;
  place.classList.remove("waiting");
  fill(place, h("p", { class: "quiet" }, `Cannot be shown: ${error.detail || error.message}`));
}
