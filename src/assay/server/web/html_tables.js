/**
 * Reads a table out of a program's HTML, as rows of text. The browser's parser never receives the
 * HTML: the result contains only rows, cells and their characters.
 */

const TAG = /<(\/?)([a-zA-Z][a-zA-Z0-9]*)\b([^<>]{0,2000})>/y;
const SILENT = new Set(["script", "style", "template", "noscript", "title", "svg", "math", "iframe", "object"]);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: " ", ndash: "–", mdash: "—", hellip: "…" };
const MOST_CELLS = 40_000;

function decode(text) {
  return text.replace(/&(#x[\da-f]{1,6}|#\d{1,7}|[a-z]{2,8});/gi, (whole, name) => {
    if (name[0] !== "#") return ENTITIES[name.toLowerCase()] ?? whole;
    const code = name[1].toLowerCase() === "x" ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1));
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : "";
  });
}

const spanOf = (attributes) =>
  Math.min(100, Math.max(1, Number(/\bcolspan\s*=\s*["']?(\d{1,4})/i.exec(attributes)?.[1] ?? 1)));

/**
 * @param {string} html
 * @returns {{head: string[], rows: string[][], index: number} | null} null if there is no table
 */
export function readTable(html) {
  const rows = [];
  let row = null;
  let cell = null;
  let silent = "";
  let cells = 0;
  const endCell = () => {
    if (cell && row) {
      const text = decode(cell.text).replace(/\s+/g, " ").trim();
      row.cells.push(text, ...Array(cell.span - 1).fill(""));
      row.heads += cell.head ? cell.span : 0;
      if (cell.head && row.leading === row.cells.length - cell.span) row.leading = row.cells.length;
    }
    cell = null;
  };
  const endRow = () => {
    endCell();
    if (row?.cells.length) rows.push(row);
    row = null;
  };
  for (let at = 0; at < html.length && cells < MOST_CELLS; ) {
    TAG.lastIndex = at;
    const tag = html[at] === "<" ? TAG.exec(html) : null;
    if (!tag) {
      const next = html.indexOf("<", at + 1);
      const end = next < 0 ? html.length : next;
      if (cell && !silent) cell.text += html.slice(at, end);
      at = end;
      continue;
    }
    at += tag[0].length;
    const [, slash, name] = tag;
    const word = name.toLowerCase();
    if (silent) silent = slash && word === silent ? "" : silent;
    else if (SILENT.has(word)) silent = slash ? "" : word;
    else if (word === "tr") {
      endRow();
      if (!slash) row = { cells: [], heads: 0, leading: 0 };
    } else if (word === "td" || word === "th") {
      endCell();
      if (!slash && row) cell = { text: "", head: word === "th", span: spanOf(tag[3]) };
      cells += 1;
    } else if (word === "table" && slash) {
      endRow();
      if (rows.length) break;
    } else if (word === "br" && cell) cell.text += " ";
  }
  endRow();
  return rows.length ? arranged(rows) : null;
}

/** A first row of only headers is the head; one more row, as in pandas, names the index. */
function arranged(rows) {
  const isHead = (row) => row.heads === row.cells.length;
  const body = [...rows];
  const head = isHead(body[0]) ? body.shift().cells : [];
  if (head.length && body.length > 1 && isHead(body[0])) {
    const names = body.shift().cells;
    head.forEach((name, column) => {
      if (!name) head[column] = names[column] ?? "";
    });
  }
  const index = body.length ? Math.min(...body.map((row) => row.leading)) : 0;
  return { head, rows: body.map((row) => row.cells), index };
}
