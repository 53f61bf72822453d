/** Numbers, sizes and times in readable form. Pure. */

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count) {
  let size = count;
  let unit = 0;
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 9.95 ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

export function tokens(count) {
  if (count < 1000) return String(count);
  if (count < 999_500) return `${(count / 1000).toFixed(count < 9_950 ? 1 : 0)}k`;
  return `${(count / 1e6).toFixed(1)}M`;
}

/** @param {number | null | undefined} dollars null: the price is unknown */
export function money(dollars) {
  if (dollars === null || dollars === undefined) return "price unknown";
  if (dollars === 0) return "$0.00";
  return dollars < 0.01 ? "< $0.01" : `$${dollars.toFixed(2)}`;
}

export function seconds(count) {
  if (count < 0.95) return `${Math.max(1, Math.round(count * 1000))} ms`;
  if (count < 59.5) return `${count.toFixed(count < 9.95 ? 1 : 0)} s`;
  const whole = Math.round(count);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** @param {string | number | null | undefined} moment RFC 3339, or seconds since 1970 */
export function asDate(moment) {
  if (moment === null || moment === undefined || moment === "") return null;
  const date = new Date(typeof moment === "number" ? moment * 1000 : moment);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function ago(moment, now = Date.now()) {
  const date = asDate(moment);
  if (!date) return "";
  const passed = Math.max(0, (now - date.getTime()) / 1000);
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

/** Heading for a day in a list. */
export function dayOf(moment, now = new Date()) {
  const date = asDate(moment);
  if (!date) return "Earlier";
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const days = Math.ceil((midnight - date.getTime()) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "This week" : "Earlier";
}

/** Return one line of a text. */
export function oneLine(text, most = 120) {
  const line = String(text ?? "").replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** Sum of the usage of replies. @param {Array<Record<string, any> | undefined>} usages */
export function sumUsage(usages) {
  const sum = { input_tokens: 0, cached_input_tokens: 0, output_tokens: 0, reasoning_tokens: 0, calls: 0, cost_usd: 0 };
  for (const usage of usages) {
    if (!usage) continue;
    for (const name of ["input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "calls"]) sum[name] += usage[name] ?? 0;
    const unknown = sum.cost_usd === null || usage.cost_usd === null;
    sum.cost_usd = unknown ? null : sum.cost_usd + (usage.cost_usd ?? 0);
  }
  return sum;
}

export function usageLine(usage) {
  const total = usage.input_tokens + usage.output_tokens;
  if (!total) return "";
  const cached = usage.cached_input_tokens ? ` · ${tokens(usage.cached_input_tokens)} cached` : "";
  const reasoning = usage.reasoning_tokens ? ` · ${tokens(usage.reasoning_tokens)} reasoning` : "";
  return `${tokens(total)} tokens${cached}${reasoning} · ${money(usage.cost_usd)}`;
}
