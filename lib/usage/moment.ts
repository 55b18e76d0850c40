const UNIT_MS = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** Milliseconds of `<N>s|m|h|d` with N from 1 to 999,999,999; null for anything else. */
export function parseSpan(text: string): number | null {
  const match = /^([1-9]\d{0,8})([smhd])$/.exec(text);
  return match && Number(match[1]) * UNIT_MS[match[2] as keyof typeof UNIT_MS];
}

const RFC_3339 = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/;

/**
 * An RFC 3339 time to the millisecond; null for anything else, a day that the calendar has not included. An offset's
 * plus sign that was not percent-encoded arrives as a space, and is read as what it was.
 */
export function parseMoment(given: string): Date | null {
  const text = given.replace(/ (?=\d\d:\d\d$)/, '+');
  const match = RFC_3339.exec(text);
  if (!match) return null;
  const [, year, month, day] = match.map(Number);
  const date = new Date(Date.UTC(year!, month! - 1, day!));
  if (date.getUTCMonth() !== month! - 1 || date.getUTCDate() !== day) return null;
  const at = new Date(text.toUpperCase().replace(' ', 'T'));
  return Number.isNaN(at.getTime()) ? null : at;
}
