import type { Buffer } from 'node:buffer';
import { keyIs, type Span, scanMembers } from '../../json/members.ts';
import { skipValue } from '../../json/scan.ts';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_BRACE = 0x7b;

const CUSTOM_ID = /^[a-zA-Z0-9_-]{1,64}$/;
/** 64 characters that are all escaped (`\u0061`), and the quotes. */
const MAX_CUSTOM_ID_BYTES = 64 * 6 + 2;

/** What one element of `requests` holds, or what is wrong with it: `at` is '', `.custom_id` or `.params`. */
export type RequestElement = { ok: true; customId: string; params: Span } | { ok: false; at: string; fault: string };

/** Reads one element after the other; a few numbers of the last one are all that it keeps. */
export interface RequestReader {
  /** As `skipValue`, with an eye on the members. Good for an element that is cut off, too. */
  measure(bytes: Buffer, at: number): number;
  /** The element that was measured last; spans count in its bytes. */
  read(): RequestElement;
}

/**
 * Reads the members of a request (front-doors section 4) in the same pass that finds its end. Of duplicates the last
 * counts, as in JSON.parse. What `params` holds is judged when the item runs. Faults are told as the Anthropic API does.
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

  return {
    measure(bytes, at) {
      current = bytes;
      customId.start = -1;
      params.start = -1;
      isObject = bytes[at] === OPEN_BRACE;
      return isObject ? scanMembers(bytes, at, visit) : skipValue(bytes, at);
    },
    read() {
      if (!isObject) return fault('', 'Input should be an object');
      if (customId.start < 0) return fault('.custom_id', 'Field required');
      if (current[customId.start] !== QUOTE) return fault('.custom_id', 'Input should be a valid string');
      const id = customIdOf(current, customId);
      if (id === null) return fault('.custom_id', `String should match pattern '${CUSTOM_ID.source}'`);
      if (params.start < 0) return fault('.params', 'Field required');
      if (current[params.start] !== OPEN_BRACE) return fault('.params', 'Input should be an object');
      return { ok: true, customId: id, params: { ...params } };
    },
  };
}

function fault(at: string, text: string): RequestElement {
  return { ok: false, at, fault: text };
}

/** The value of a valid JSON string, or null if it is no custom_id. */
function customIdOf(bytes: Buffer, { start, end }: Span): string | null {
  if (end - start > MAX_CUSTOM_ID_BYTES) return null;
  const token = bytes.toString('latin1', start + 1, end - 1);
  const id = bytes.subarray(start, end).includes(BACKSLASH)
    ? String(JSON.parse(bytes.toString('utf8', start, end)))
    : token;
  return CUSTOM_ID.test(id) ? id : null;
}
