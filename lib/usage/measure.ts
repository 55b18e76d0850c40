import type { Buffer } from 'node:buffer';
import { cutText } from '../base/errors.ts';
import { keyIs, type Span, scanMembers } from '../json/members.ts';
import { skipSpace, skipValue } from '../json/scan.ts';
import type { TokenCounts } from '../model/usage-event.ts';
import type { CallRequest } from '../upstream/call-result.ts';
import { tokensOf } from './tokens.ts';

/** What an answer says of itself. */
export interface Measured {
  /** Null: no usage, or an odd one. The item is unpriced. */
  tokens: TokenCounts | null;
  /** `finish_reason` of the first choice, `stop_reason`, or the status of a response (why, when it is incomplete). Cut. */
  finishReason: string | null;
}

type Adapter = CallRequest['adapter'];
type Fields = Readonly<Record<string, unknown>>;

/** A usage object beyond this is none: real ones are below 1 KiB, and parsing must stay cheap whatever an upstream sends. */
const MAX_PART_BYTES = 65_536;

const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;
const COMMA = 0x2c;
const CLOSE_BRACKET = 0x5d;

/**
 * Reads token counts and finish reason of a successful answer. `parsed` is the answer as JSON.parse gave it (0.4 us for
 * a usual one), or undefined for a large answer: then only the few members that count are found in `body` (a valid JSON
 * object) and parsed alone. Never throws for anything an upstream sends.
 */
export function measure(adapter: Adapter, parsed: unknown, body: Buffer): Measured {
  const answer = parsed === undefined ? pick(adapter, body) : parsed;
  if (typeof answer !== 'object' || answer === null) return { tokens: null, finishReason: null };
  const fields = answer as Fields;
  return { tokens: tokensOf(adapter, fields.usage), finishReason: finishReason(adapter, fields) };
}

function finishReason(adapter: Adapter, answer: Fields): string | null {
  if (adapter === 'openai') return reasonText(member(member(answer.choices, '0'), 'finish_reason'));
  if (adapter === 'anthropic') return reasonText(answer.stop_reason);
  if (adapter === 'openai_responses') {
    const why = reasonText(member(answer.incomplete_details, 'reason'));
    return why ?? reasonText(answer.status);
  }
  return null;
}

function member(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Fields)[name] : undefined;
}

const USUAL = /^[a-z_]{1,32}$/;

function reasonText(value: unknown): string | null {
  if (typeof value !== 'string' || value === '') return null;
  return USUAL.test(value) ? value : cutText(value);
}

const WANTED: Record<Adapter, readonly string[]> = {
  openai: ['usage'],
  openai_embeddings: ['usage'],
  openai_responses: ['usage', 'status', 'incomplete_details'],
  anthropic: ['usage', 'stop_reason'],
};

/** The members that count, found in one pass over the bytes; of duplicates the last, as for JSON.parse. */
function pick(adapter: Adapter, body: Buffer): Fields | null {
  const names = WANTED[adapter];
  const spans = new Map<string, Span>();
  let finish: Span | null = null;
  const end = scanMembers(body, skipSpace(body, 0), (keyAt, valueAt) => {
    if (adapter === 'openai' && keyIs(body, keyAt, 'choices')) {
      return scanChoices(body, valueAt, (span) => {
        finish = span;
      });
    }
    const valueEnd = skipValue(body, valueAt);
    const name = names.find((candidate) => keyIs(body, keyAt, candidate));
    if (name !== undefined && valueEnd > 0) spans.set(name, { start: valueAt, end: valueEnd });
    return valueEnd;
  });
  if (end < 0) return null;
  const found: Record<string, unknown> = {};
  for (const [name, span] of spans) found[name] = parseSpan(body, span);
  if (finish !== null) found.choices = [{ finish_reason: parseSpan(body, finish) }];
  return found;
}

/** Passes `choices`, telling where the first one's `finish_reason` stands (null: nowhere). */
function scanChoices(body: Buffer, from: number, tell: (span: Span | null) => void): number {
  tell(null);
  const first = body[from] === OPEN_BRACKET ? skipSpace(body, from + 1) : -1;
  if (first < 0 || body[first] !== OPEN_BRACE) return skipValue(body, from);
  let at = scanMembers(body, first, (keyAt, valueAt) => {
    const end = skipValue(body, valueAt);
    if (end > 0 && keyIs(body, keyAt, 'finish_reason')) tell({ start: valueAt, end });
    return end;
  });
  for (;;) {
    if (at < 0) return at;
    at = skipSpace(body, at);
    if (body[at] === CLOSE_BRACKET) return at + 1;
    if (body[at] !== COMMA) return -1 - at;
    at = skipValue(body, skipSpace(body, at + 1));
  }
}

function parseSpan(body: Buffer, { start, end }: Span): unknown {
  return end - start > MAX_PART_BYTES ? null : JSON.parse(body.toString('utf8', start, end));
}
