import { isUtf8 } from 'node:buffer';
import type { Steps } from '../base/turns.ts';
import { type Elements, elementsOf } from './answer-elements.ts';
import type { BadReason, CallClass, CallRequest } from './call-result.ts';
import { readLargeAnswer } from './large-answer.ts';
import { toldBy } from './told-error.ts';

/** Larger bodies are validated in place and not built: hostile JSON of 64 KiB takes JSON.parse 3 ms, 1 MiB 200 ms. */
export const PARSE_MOST_BYTES = 64 * 1024;

/** The judgement of a 2xx body. For a response, `parsed` is the body, or the parts of a large one. */
export type Judgement =
  | { class: 'success'; badReason: null; message: null; parsed: unknown }
  | { class: CallClass; badReason: BadReason; message: string | null; parsed: undefined };

type Call = Pick<CallRequest, 'adapter' | 'inputs'>;
type Fields = Readonly<Record<string, unknown>>;

/** Also what an answer is that cannot be decoded. */
export const NOT_JSON = bad('not_json');
const NO_RESPONSE = bad('no_response');

/** A response with one of these has no answer, yet or ever; `incomplete` has one. */
const UNANSWERED: ReadonlySet<unknown> = new Set(['failed', 'cancelled', 'queued', 'in_progress']);

/**
 * Judges the decoded body of a 2xx answer ("Judgement of a 2xx answer" in docs/spec/gateway-rules.md): a failure is not an
 * answer. For bodies of at most PARSE_MOST_BYTES.
 */
export function judgeBody(call: Call, body: Buffer): Judgement {
  if (!isUtf8(body)) return NOT_JSON;
  let parsed: unknown;
  try {
    // JSON.parse refuses a byte order mark, and so must we: the bytes are put into the results document as they are.
    parsed = JSON.parse(body.toString());
  } catch {
    return NOT_JSON;
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return NO_RESPONSE;
  return judge(call, parsed as Fields, elementsOf(call.adapter, parsed as Fields), parsed);
}

/** The same for a body of any size, in steps. */
export function* judgeLargeBody(call: Call, body: Buffer): Steps<Judgement> {
  const answer = yield* readLargeAnswer(call.adapter, body);
  if (answer.kind === 'invalid') return NOT_JSON;
  if (answer.kind === 'not_object') return NO_RESPONSE;
  const { parts, says, elements } = answer;
  return judge(call, { ...parts, ...says }, elements, parts);
}

function judge({ adapter, inputs }: Call, fields: Fields, elements: Elements | null, parsed: unknown): Judgement {
  const error = fields.error ?? null;
  if (fields.object === 'error' || fields.type === 'error') return errorInside(error ?? fields);
  const isUnanswered = adapter === 'openai_responses' && UNANSWERED.has(fields.status);
  if (elements === null || isUnanswered) return error === null ? NO_RESPONSE : errorInside(error);
  if (elements.failed !== null) return errorInside(elements.failed);
  const isShort = adapter === 'openai_embeddings' && elements.count < (inputs ?? 1);
  if (elements.isOdd || isShort) return NO_RESPONSE;
  return { class: 'success', badReason: null, message: null, parsed };
}

function errorInside(error: unknown): Judgement {
  return { ...toldBy(error), badReason: 'error_inside', parsed: undefined };
}

function bad(badReason: BadReason): Judgement {
  return { class: 'bad_response', badReason, message: null, parsed: undefined };
}
