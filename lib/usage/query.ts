import { z } from 'zod';
import { isUuid } from '../base/clock.ts';
import { ApiError, cutText } from '../base/errors.ts';
import { PARAM_AND_RULE, parseBy, wholeText } from '../base/parse.ts';
import { parseMoment, parseSpan } from './moment.ts';
import type { UsageFilter } from './usage-filter.sql.ts';

/** A query of usage. `owner` limits the answer to that caller's own events; null sees all. */
export interface UsageQuery {
  query: URLSearchParams;
  owner: string | null;
}

/** Names of the text filters. Those of the first list are stored cut, so that they are looked for cut. */
const CUT_TEXTS = ['requested_model', 'finish_reason'] as const;
const TEXTS = [
  'error_kind',
  'error_message',
  'instance',
  'model',
  'provider',
  'host',
  'host_key',
  'adapter',
  'pricing',
  'resolved_via',
  'policy',
  'project',
  'team',
  'principal_kind',
  'principal_id',
  'credential_kind',
  'credential_id',
  'relay_key_hash',
] as const;

const MAX_INT = 2_147_483_647;
const MAX_NANOS = 2n ** 63n - 1n;
const HOUR_MS = 3_600_000;
/** `ts` is rounded to the nearest millisecond: an event of this very moment may carry the next one. */
const AHEAD_MS = 1;

const MOMENT_RULE = 'must be an RFC 3339 time from 1970 to 9999, such as 2027-01-31T12:00:00Z';

/** A filter by any of its values, read one by one; null where it does not stand. */
const any = <Each extends z.ZodType>(each: Each) => z.array(each).nullable();

/** A parameter that may stand once; null without it. */
export const once = <Value extends z.ZodType<unknown, string>>(value: Value) =>
  z
    .tuple([z.string()], 'is given twice')
    .transform(([text]) => text)
    .pipe(value)
    .nullable();

/** A whole number from `min` to `max`, of at most 16 digits. */
export const whole = (min: number, max: number) => wholeText(min, max, 16);

/** Ids that cannot be those of an event match nothing. */
const ids = <Id>(read: (text: string) => Id | null) =>
  any(z.string()).transform((texts) => texts?.map(read).filter((id) => id !== null) ?? null);

const textLists = <Name extends string>(names: readonly Name[], max?: number) => {
  const list = any(z.string().transform((text) => cutText(text, max ?? text.length)));
  return Object.fromEntries(names.map((name) => [name, list])) as Record<Name, typeof list>;
};

const FILTER = z.object({
  status: any(whole(0, 999)),
  status_class: any(
    z
      .string()
      .regex(/^[0-9](?:xx)?$/i, 'must be a digit, or one such as 2xx')
      .transform((text) => Number(text[0])),
  ),
  status_min: once(whole(0, 999)),
  status_max: once(whole(0, 999)),
  error: any(z.enum(['true', 'false'], 'must be true or false').transform((text) => text === 'true')),
  batch_idx: any(whole(0, MAX_INT)),
  duration_ms: any(whole(0, MAX_INT)),
  attempts: any(whole(0, MAX_INT)),
  cost_nanos: any(z.string().refine(isNanos, `must be a whole number from 0 to ${MAX_NANOS}`)),
  ts: any(
    z
      .string()
      .refine((text) => parseMoment(text) !== null, MOMENT_RULE)
      .transform((text) => parseMoment(text)!),
  ),
  batch_id: ids((text) => (isUuid(text.toLowerCase()) ? text.toLowerCase() : null)),
  request_id: ids(parseRequestId),
  ...textLists(CUT_TEXTS, 128),
  ...textLists(TEXTS),
});

const FILTERS: ReadonlySet<string> = new Set([...Object.keys(FILTER.shape), 'source', 'since', 'from', 'to']);

/** 400 `invalid_value` that names the parameter. */
export function badValue(param: string, rule: string): ApiError {
  return new ApiError('invalid_value', `${param} ${rule}`, { param });
}

/** The value of a parameter that may stand once; null without it. */
export function single(query: URLSearchParams, name: string): string | null {
  const values = query.getAll(name);
  if (values.length > 1) throw badValue(name, 'is given twice');
  return values[0] ?? null;
}

/** Reads the parameters that `contract` names, made of `once`. Throws 400 as `parseFilter` does. */
export function parseParameters<Contract extends z.ZodObject>(
  contract: Contract,
  query: URLSearchParams,
): z.infer<Contract> {
  const given = Object.keys(contract.shape).map((name) => [name, query.has(name) ? query.getAll(name) : null]);
  return parseBy(contract, Object.fromEntries(given), PARAM_AND_RULE);
}

/**
 * Reads the filters of a usage query ("Usage queries" in docs/spec/gateway-rules.md). `nowMs` is the database's time.
 * Throws 400 `invalid_value` with the parameter's name for a value that its filter cannot have, and for a parameter
 * that does not exist, `ownParameters` being those of this call alone. A filter that is misspelt must not give the figures of everything.
 */
export function parseFilter(
  { query, owner }: UsageQuery,
  nowMs: number,
  ownParameters: readonly string[],
): UsageFilter {
  for (const name of new Set(query.keys())) {
    if (!FILTERS.has(name) && !ownParameters.includes(name))
      throw badValue(cutText(name), 'is no parameter of this call');
  }
  const { from, to } = period(query, nowMs);
  const filter = parseParameters(FILTER, query);
  const foreign = query.has('source') && !query.getAll('source').includes('batch');
  return { ...filter, from, to, owner, ...(foreign && { batch_id: [] }) };
}

function isNanos(text: string): boolean {
  return /^\d{1,19}$/.test(text) && BigInt(text) <= MAX_NANOS;
}

function momentOf(name: string, text: string): Date {
  const at = parseMoment(text);
  if (at === null) throw badValue(name, MOMENT_RULE);
  return at;
}

function period(query: URLSearchParams, nowMs: number): { from: Date; to: Date } {
  const [since, from, to] = ['since', 'from', 'to'].map((name) => single(query, name));
  if (since && (from || to)) throw badValue('since', 'does not go with from or to');
  const span = since ? parseSpan(since) : HOUR_MS;
  if (since === '' || span === null) throw badValue('since', 'must be <N>s, <N>m, <N>h or <N>d');
  const end = to === null || to === undefined ? new Date(Math.ceil(nowMs) + AHEAD_MS) : momentOf('to', to);
  const start =
    from === null || from === undefined ? new Date(Math.max(0, end.getTime() - span)) : momentOf('from', from);
  if (start > end) throw badValue('from', 'must not be later than to');
  return { from: start, to: end };
}

/** `<batch id>-<idx>`, the idx in ten digits: as text it sorts as the items do. */
export function requestId(batchId: string, idx: number): string {
  return `${batchId}-${String(idx).padStart(10, '0')}`;
}

function parseRequestId(text: string): { batch_id: string; batch_idx: number } | null {
  const match = /^([0-9a-f-]{36})-(\d{10})$/.exec(text);
  if (!match || !isUuid(match[1]!) || Number(match[2]) > MAX_INT) return null;
  return { batch_id: match[1]!, batch_idx: Number(match[2]) };
}
