import type { Buffer } from 'node:buffer';
import type { Steps } from '../base/turns.ts';
import { keyIs, nameOf, type Span } from '../json/members.ts';
import { isUtf8InSteps } from '../json/utf8.ts';
import { isObject, startDocument, type Walk, walkInSteps } from '../json/walk.ts';
import type { CallRequest } from './call-result.ts';

type Adapter = CallRequest['adapter'];

/** A large answer, as read: of an object only the few members that count, each parsed alone. */
export type LargeAnswer =
  | { kind: 'object'; parts: Record<string, unknown> }
  | { kind: 'not_object' }
  | { kind: 'invalid' };

/** The result field of each wire format: an object that has it is a response, even beside an `error`. */
export const RESULT_FIELD: Record<Adapter, string> = {
  openai: 'choices',
  openai_responses: 'output',
  anthropic: 'content',
  openai_embeddings: 'data',
};

const WANTED: Record<Adapter, readonly string[]> = {
  openai: ['error', 'choices', 'usage'],
  openai_embeddings: ['error', 'data', 'usage'],
  openai_responses: ['error', 'output', 'usage', 'status', 'incomplete_details'],
  anthropic: ['error', 'content', 'usage', 'stop_reason'],
};

/** A member beyond this is not parsed: real ones are below 1 KiB. 64 KiB of the worst JSON take JSON.parse 3 ms. */
const MAX_PART_BYTES = 65_536;

const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;
const LOWER_N = 0x6e;

/**
 * Reads an answer that is too large for JSON.parse (200 ms for the worst MiB), with full validation (UTF-8 included) and
 * without building it. A byte order mark is `invalid`, as for JSON.parse: the bytes go into the results document as they
 * are. Of duplicates the last one counts. `error` and the result field only tell whether they are null; `choices` has
 * the first choice's `finish_reason`.
 */
export function* readLargeAnswer(adapter: Adapter, body: Buffer): Steps<LargeAnswer> {
  if (!(yield* isUtf8InSteps(body))) return { kind: 'invalid' };
  const members = new Map<string, Span>();
  let name: string | undefined;
  let inChoices = false;
  let choice = 0;
  let isFinish = false;
  let finish: Span | null = null;

  const walk: Walk = startDocument(0, 3, {
    key(keyAt, depth) {
      if (depth === 1) {
        name = nameOf(body, keyAt, WANTED[adapter]);
        inChoices = adapter === 'openai' && name === 'choices';
        choice = 0;
        if (inChoices) finish = null;
      } else if (inChoices) {
        const inFirst = depth === 3 && choice === 0 && body[walk.starts[1]!] === OPEN_BRACKET;
        isFinish = inFirst && body[walk.starts[2]!] === OPEN_BRACE && keyIs(body, keyAt, 'finish_reason');
      }
    },
    value(start, end, depth) {
      if (depth === 3) {
        if (isFinish) finish = { start, end };
        isFinish = false;
      } else if (depth === 2) choice++;
      else if (name !== undefined) members.set(name, { start, end });
    },
  });
  const end = yield* walkInSteps(walk, body);
  if (end < 0) return { kind: 'invalid' };
  if (!isObject(walk, body)) return { kind: 'not_object' };

  const parts: Record<string, unknown> = {};
  for (const [member, span] of members) {
    const isJudged = member === 'error' || member === RESULT_FIELD[adapter];
    // No other JSON value starts with an n.
    if (isJudged) parts[member] = body[span.start] === LOWER_N ? null : [];
    else parts[member] = parseSpan(body, span);
  }
  if (finish !== null) parts.choices = [{ finish_reason: parseSpan(body, finish) }];
  return { kind: 'object', parts };
}

function parseSpan(body: Buffer, { start, end }: Span): unknown {
  return end - start > MAX_PART_BYTES ? null : JSON.parse(body.toString('utf8', start, end));
}
