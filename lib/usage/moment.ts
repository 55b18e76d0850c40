const UNIT_MS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** Milliseconds of `<N>s|m|h|d` with N from 1 to 999,999,999; null for anything else. */
export function parseSpan(text: string): number | null {
  const match = /^([1-9]\d{0,8})([smhd])$/.exec(text);
  return match && Number(match[1]) * UNIT_MS[match[2] as keyof typeof UNIT_MS];
}

const RFC_3339 = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/;

/** The first and the last moment that a query may name. Ids of batches tell times from 1970 on, and years have four digits. */
const FIRST_MS = 0;
const LAST_MS = Date.UTC(9999, 11, 31, 23, 59, 59, 999);
/** All times that a query may be about fit one bucket of this length. Postgres knows no interval of a billion days. */
export const LONGEST_BUCKET_MS = LAST_MS + 1;

/** True for a time that a usage query may be about. */
export function isInRange(ms: number): boolean {
  return ms >= FIRST_MS && ms <= LAST_MS;
}

/**
 * An RFC 3339 time from 1970 to 9999, to the millisecond; null for anything else, a day that the calendar has not included.
 * An offset's plus sign that was not percent-encoded arrives as a space, and is read as what it was.
 */
export function parseMoment(given: string): Date | null {
  const text = given.replace(/ (?=\d\d:\d\d$)/, '+');
  const match = RFC_3339.exec(text);
  if (!match) return null;
  const [, year, month, day] = match.map(Number);
  const date = new Date(Date.UTC(year!, month! - 1, day!));
  if (date.getUTCMonth() !== month! - 1 || date.getUTCDate() !== day) return null;
  const at = new Date(text.toUpperCase().replace(' ', 'T'));
  return isInRange(at.getTime()) ? at : null;
}
