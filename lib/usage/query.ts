import { isUuid } from '../base/clock.ts';
import { ApiError, cutText } from '../base/errors.ts';
import { parseMoment, parseSpan } from './moment.ts';
import type { UsageFilter } from './usage-filter.sql.ts';

/** Who asks, and with which query. `owner` limits the answer to that caller's own events; null sees all. */
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

const OTHERS = [
  'source',
  'request_id',
  'batch_id',
  'batch_idx',
  'status',
  'status_class',
  'status_min',
  'status_max',
  'error',
  'duration_ms',
  'attempts',
  'cost_nanos',
  'ts',
  'since',
  'from',
  'to',
] as const;

const FILTERS: ReadonlySet<string> = new Set([...CUT_TEXTS, ...TEXTS, ...OTHERS]);
/** Parameters of one of the three calls; the others take no notice of them. */
const CALL_PARAMETERS: ReadonlySet<string> = new Set(['limit', 'cursor', 'group_by', 'interval']);

const MAX_INT = 2_147_483_647;
const HOUR_MS = 3_600_000;
/** `ts` is rounded to the nearest millisecond: an event of this very moment may carry the next one. */
const AHEAD_MS = 1;

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

/** A whole number of a parameter that may stand once; null without it. */
export function wholeNumber(query: URLSearchParams, name: string, min: number, max: number): number | null {
  const text = single(query, name);
  return text === null ? null : whole(name, text, min, max);
}

function whole(name: string, text: string, min: number, max: number): number {
  const value = /^\d{1,16}$/.test(text) ? Number(text) : -1;
  if (value >= min && value <= max) return value;
  throw badValue(name, `must be a whole number from ${min} to ${max}`);
}

/**
 * Reads the filters of a usage query (behaviour section 6). `nowMs` is the database's time. Throws 400 `invalid_value`
 * with the parameter's name for a value that its filter cannot have, and for a parameter that does not exist: a filter that
 * is misspelt must not give the figures of everything.
 */
export function parseFilter({ query, owner }: UsageQuery, nowMs: number): UsageFilter {
  for (const name of new Set(query.keys())) {
    if (!FILTERS.has(name) && !CALL_PARAMETERS.has(name)) throw badValue(cutText(name), 'is no parameter of this call');
  }
  const every = <T>(name: string, read: (text: string) => T): T[] | null => {
    const values = query.getAll(name);
    return values.length === 0 ? null : values.map(read);
  };
  const wholes = (name: string, max: number) => every(name, (text) => whole(name, text, 0, max));
  const texts = (name: string, max?: number) => every(name, (text) => cutText(text, max ?? text.length));
  const source = query.getAll('source');
  const foreign = source.length > 0 && !source.includes('batch');
  return {
    ...period(query, nowMs),
    owner,
    status: wholes('status', 999),
    status_class: every('status_class', statusClass),
    status_min: wholeNumber(query, 'status_min', 0, 999),
    status_max: wholeNumber(query, 'status_max', 0, 999),
    error: every('error', trueOrFalse),
    batch_idx: wholes('batch_idx', MAX_INT),
    duration_ms: wholes('duration_ms', MAX_INT),
    attempts: wholes('attempts', MAX_INT),
    cost_nanos: every('cost_nanos', nanos),
    ts: every('ts', (text) => momentOf('ts', text)),
    batch_id: foreign ? [] : (every('batch_id', (text) => text.toLowerCase())?.filter(isUuid) ?? null),
    request_id: every('request_id', parseRequestId)?.filter((id) => id !== null) ?? null,
    ...(Object.fromEntries([
      ...CUT_TEXTS.map((name) => [name, texts(name, 128)]),
      ...TEXTS.map((name) => [name, texts(name)]),
    ]) as Record<(typeof CUT_TEXTS)[number] | (typeof TEXTS)[number], string[] | null>),
  };
}

function statusClass(text: string): number {
  const match = /^([0-9])(?:xx)?$/i.exec(text);
  if (!match) throw badValue('status_class', 'must be a digit, or one such as 2xx');
  return Number(match[1]);
}

function trueOrFalse(text: string): boolean {
  if (text !== 'true' && text !== 'false') throw badValue('error', 'must be true or false');
  return text === 'true';
}

function nanos(text: string): string {
  if (!/^\d{1,19}$/.test(text) || BigInt(text) >= 2n ** 63n) {
    throw badValue('cost_nanos', `must be a whole number from 0 to ${2n ** 63n - 1n}`);
  }
  return text;
}

function momentOf(name: string, text: string): Date {
  const at = parseMoment(text);
  if (at === null) throw badValue(name, 'must be an RFC 3339 time, such as 2027-01-31T12:00:00Z');
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
