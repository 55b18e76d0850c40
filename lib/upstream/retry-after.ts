/**
 * Milliseconds that a Retry-After header asks for, never negative: whole or decimal seconds, or an HTTP date (RFC 9110
 * section 10.2.3). A date is taken relative to the answer's own Date header where there is one, because the two hosts'
 * clocks need not agree; else relative to `nowMs`. Null when absent or unreadable, which the key pool treats as "none".
 */
export function parseRetryAfter(value: string | null, date: string | null, nowMs: number): number | null {
  if (value === null) return null;
  const text = value.trim();
  // 15 digits of seconds stay exact in milliseconds within a double's 2^53, near enough for a pause.
  if (/^\d{1,15}(\.\d+)?$/.test(text)) return Math.round(Number(text) * 1000);
  const at = httpDate(text);
  if (at === null) return null;
  const base = date === null ? null : httpDate(date.trim());
  return Math.max(0, at - (base ?? nowMs));
}

/** Epoch ms of an HTTP date; only what starts with a weekday, since Date.parse also takes bare numbers for years. */
function httpDate(text: string): number | null {
  if (!/^(mon|tue|wed|thu|fri|sat|sun)/i.test(text)) return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}
