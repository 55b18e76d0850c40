import { z } from 'zod';

// Field types that several kinds share. All text of the catalogue is one line without control characters: some of it
// becomes URLs and headers, all of it becomes log lines, and Postgres refuses NUL and lone surrogates.

const CONTROL = /[\p{Cc}\p{Cs}\u2028\u2029]/u;

/** One line of free text, 1 to `max` characters. */
export const text = (max: number) =>
  z
    .string()
    .min(1, 'must not be empty')
    .max(max, `must be at most ${max} characters`)
    .refine((value) => !CONTROL.test(value), 'must not contain line breaks, NUL or other control characters');

/** `metadata.name` and every reference to it. */
export const name = z.string().regex(/^[A-Za-z0-9._-]{1,128}$/, 'must be 1-128 characters of A-Z a-z 0-9 . _ -');

/** A secret that is sent in a header: printable ASCII, no space at either end. The message never holds the value. */
export const HEADER_SECRET = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/;

/** The message for a value that HEADER_SECRET refuses, wherever it came from. */
export const HEADER_SECRET_FAULT =
  'must be printable ASCII without line breaks, NUL or spaces at its ends, because it becomes a header';

/** A secret inside a document; at most 8 KiB, as much as most servers accept in a header. */
export const headerSecret = z
  .string()
  .max(8192, 'must be at most 8192 characters')
  .regex(HEADER_SECRET, HEADER_SECRET_FAULT);

const environmentName = z
  .string()
  .regex(/^[A-Za-z_][A-Za-z0-9_]{0,254}$/, 'must be the name of an environment variable');

/** A secret that each replica reads from its own environment. */
export const fromEnvironment = z.strictObject({ kind: z.literal('env'), env: environmentName });

/** An http(s) URL that a path can be appended to. Messages never repeat it: it might hold credentials. */
export const baseURL = z
  .string()
  .max(2048, 'must be at most 2048 characters')
  .superRefine((value, ctx) => {
    const fault = faultOfURL(value);
    if (fault !== null) ctx.addIssue({ code: 'custom', message: fault });
  });

function faultOfURL(value: string): string | null {
  // The URL parser silently drops tabs and line breaks, so this check refuses them first.
  if (!/^[\x21-\x7e]+$/.test(value)) return 'must be printable ASCII without spaces or line breaks';
  const url = URL.parse(value);
  if (url === null || (url.protocol !== 'http:' && url.protocol !== 'https:')) return 'must be an http or https URL';
  if (url.username !== '' || url.password !== '' || /^https?:\/*[^/?#]*@/i.test(value)) {
    return 'must not contain credentials';
  }
  if (value.includes('?')) return 'must not contain a query';
  if (value.includes('#')) return 'must not contain a fragment';
  return null;
}

/** Replaces an adapter's path. It may carry a query (some hosts want an API version there). */
export const urlPath = z
  .string()
  .max(2048, 'must be at most 2048 characters')
  .regex(/^\/[\x21\x22\x24-\x5b\x5d-\x7e]*$/, 'must start with / and be printable ASCII without spaces, \\ or #');

/** A moment: RFC 3339 with an offset. */
export const moment = z
  .string()
  .refine((value) => isMoment(value), 'must be an RFC 3339 time with an offset, such as 2027-01-31T00:00:00Z');

/** A moment or a day: RFC 3339 `date-time` or `full-date`. */
export const dayOrMoment = z
  .string()
  .refine((value) => isDay(value) || isMoment(value), 'must be an RFC 3339 date or time, such as 2027-01-31');

function isDay(value: string): boolean {
  return z.iso.date().safeParse(value).success;
}

function isMoment(value: string): boolean {
  if (!/^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)$/.test(value)) return false;
  return z.iso.date().safeParse(value.slice(0, 10)).success && !Number.isNaN(Date.parse(value.toUpperCase()));
}

/**
 * A policy grant ("Grants" in docs/spec/gateway-rules.md): `provider`, `provider/model`, `provider@host`,
 * `provider/model@host` or `@host`. A missing segment is the wildcard, so `*` is refused instead of read as one.
 */
export const grant = z
  .string()
  .refine((value) => !value.includes('*'), 'must not contain *: leave a segment out to match all of it')
  .regex(
    /^(?:[A-Za-z0-9._-]{1,128}(?:\/[A-Za-z0-9._-]{1,128})?(?:@[A-Za-z0-9._-]{1,128})?|@[A-Za-z0-9._-]{1,128})$/,
    'must be provider, provider/model, provider@host, provider/model@host or @host',
  );

/** A list without repeated entries. */
export const distinct = <T extends z.ZodType<string>>(item: T, max: number) =>
  z
    .array(item)
    .max(max, `must have at most ${max} entries`)
    .superRefine((values, ctx) => {
      const seen = new Set<string>();
      for (const [i, value] of values.entries()) {
        if (seen.has(value)) ctx.addIssue({ code: 'custom', path: [i], message: 'is given twice' });
        seen.add(value);
      }
    });

/** Absent is true. The default is set when the catalogue is loaded, not when it is stored. */
export const enabled = z.boolean().optional();
