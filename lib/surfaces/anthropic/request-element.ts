import type { Buffer } from 'node:buffer';
import { keyIs, type Span, scanMembers } from '../../json/members.ts';
import { skipValue } from '../../json/scan.ts';

const QUOTE = 0x22;
const OPEN_BRACE = 0x7b;

const CUSTOM_ID = /^[a-zA-Z0-9_-]{1,64}$/;
/** 64 characters that are all escaped (`\u0061`), and the quotes. */
const MAX_CUSTOM_ID_BYTES = 64 * 6 + 2;

/** What is wrong with an element of `requests`; `at` is '', `.custom_id` or `.params`. */
export interface RequestFault {
  at: string;
  text: string;
}

/** Reads one element after the other; what it gives is of the last one. Nothing is made for each: there are 100,000. */
export interface RequestReader {
  /** As `skipValue`, with an eye on the members. Good for an element that is cut off, too. */
  measure(bytes: Buffer, at: number): number;
  /** What is wrong with the element that was measured last; null when nothing is, and then the rest is set. */
  check(): RequestFault | null;
  customId: string;
  /** Where the value of `params` stands in the bytes that were measured. */
  readonly params: Readonly<Span>;
}

/**
 * Reads the members of a request ("Create of a message batch" in docs/spec/anthropic-surface.md) in the same pass that
 * finds its end. Of duplicates the last counts, as in JSON.parse. What `params` holds is judged when the item runs.
 * Faults are told as the Anthropic API does.
 */
export function requestReader(): RequestReader {
  let current: Buffer;
  let isObject = false;
  const customId: Span = { start: -1, end: -1 };
  const params: Span = { start: -1, end: -1 };

  const visit = (keyAt: number, valueAt: number): number => {
    const end = skipValue(current, valueAt);
    const member = keyIs(current, keyAt, 'params') ? params : keyIs(current, keyAt, 'custom_id') ? customId : null;
    if (member !== null) {
      member.start = valueAt;
      member.end = end;
    }
    return end;
  };

  const reader: RequestReader = {
    customId: '',
    params,
    measure(bytes, at) {
      current = bytes;
      customId.start = -1;
      params.start = -1;
      isObject = bytes[at] === OPEN_BRACE;
      return isObject ? scanMembers(bytes, at, visit) : skipValue(bytes, at);
    },
    check() {
      if (!isObject) return { at: '', text: 'Input should be an object' };
      if (customId.start < 0) return { at: '.custom_id', text: 'Field required' };
      if (current[customId.start] !== QUOTE) return { at: '.custom_id', text: 'Input should be a valid string' };
      reader.customId = customIdOf(current, customId);
      if (!CUSTOM_ID.test(reader.customId)) {
        return { at: '.custom_id', text: `String should match pattern '${CUSTOM_ID.source}'` };
      }
      if (params.start < 0) return { at: '.params', text: 'Field required' };
      if (current[params.start] !== OPEN_BRACE) return { at: '.params', text: 'Input should be an object' };
      return null;
    },
  };
  return reader;
}

/** The value of a valid JSON string, as far as it can be a custom_id: empty when it is too long. */
function customIdOf(bytes: Buffer, { start, end }: Span): string {
  if (end - start > MAX_CUSTOM_ID_BYTES) return '';
  const token = bytes.toString('latin1', start + 1, end - 1);
  return token.includes('\\') ? String(JSON.parse(bytes.toString('utf8', start, end))) : token;
}
