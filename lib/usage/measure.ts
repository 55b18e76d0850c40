import { cutText } from '../base/errors.ts';
import type { TokenCounts } from '../model/usage-event.ts';
import type { CallRequest } from '../upstream/call-result.ts';
import { tokensOf } from './tokens.ts';

/** The figures of an answer. */
export interface Measured {
  /** Null: no usage, or an odd one. The item is unpriced. */
  tokens: TokenCounts | null;
  /** `finish_reason` of the first choice, `stop_reason`, or the status of a response (why, when it is incomplete). Cut. */
  finishReason: string | null;
}

type Adapter = CallRequest['adapter'];
type Fields = Readonly<Record<string, unknown>>;

/**
 * Reads token counts and finish reason of a successful answer: `answer` is what JSON.parse made of it (0.4 us for a usual
 * one), or of a large one the members that count. Never throws for anything an upstream sends.
 */
export function measure(adapter: Adapter, answer: unknown): Measured {
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
