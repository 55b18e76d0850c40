import { Buffer } from 'node:buffer';
import { keyIs, MAX_MEMBERS, type Span } from '../../json/members.ts';
import type { ElementEvents } from '../../json/stream-elements.ts';

const QUOTE = 0x22;
const OPEN_BRACE = 0x7b;

const CUSTOM_ID = /^[a-zA-Z0-9_-]{1,64}$/;
/** 64 characters that are all escaped (`\u0061`), and the quotes. */
const MAX_CUSTOM_ID_BYTES = 64 * 6 + 2;

/** The fault of an element of `requests`; `at` is '', `.custom_id` or `.params`. */
export interface RequestFault {
  at: string;
  text: string;
}

/** Reads one element after the other; what it returns is of the last one. Nothing is made for each: there are 100,000. */
export interface RequestReader extends ElementEvents {
  /** The fault of the element that was passed last. Null when it has no fault; then the rest is set. */
  check(): RequestFault | null;
  customId: string;
  /** Where the value of `params` stands in the element. */
  readonly params: Readonly<Span>;
}

/**
 * Reads the members of a request ("Create of a message batch" in docs/spec/anthropic-surface.md) in the same pass that
 * finds its end. Of duplicates the last counts, as in JSON.parse. What `params` holds is judged when the item runs.
 * Faults are worded as in the Anthropic API.
 */
export function requestReader(): RequestReader {
  const customId: Span = { start: -1, end: -1 };
  const params: Span = { start: -1, end: -1 };
  let member: Span | null = null;
  let members = 0;

  const reader: RequestReader = {
    bytes: Buffer.alloc(0),
    customId: '',
    params,
    begin() {
      customId.start = -1;
      params.start = -1;
      members = 0;
      member = null;
    },
    key(keyAt) {
      members++;
      const { bytes } = reader;
      member = keyIs(bytes, keyAt, 'params') ? params : keyIs(bytes, keyAt, 'custom_id') ? customId : null;
    },
    value(start, end) {
      if (member === null) return;
      member.start = start;
      member.end = end;
    },
    check() {
      const { bytes } = reader;
      if (bytes[0] !== OPEN_BRACE) return { at: '', text: 'Input should be an object' };
      if (members > MAX_MEMBERS) return { at: '', text: `Object should have at most ${MAX_MEMBERS} members` };
      if (customId.start < 0) return { at: '.custom_id', text: 'Field required' };
      if (bytes[customId.start] !== QUOTE) return { at: '.custom_id', text: 'Input should be a valid string' };
      reader.customId = customIdOf(bytes, customId);
      if (!CUSTOM_ID.test(reader.customId)) {
        return { at: '.custom_id', text: `String should match pattern '${CUSTOM_ID.source}'` };
      }
      if (params.start < 0) return { at: '.params', text: 'Field required' };
      if (bytes[params.start] !== OPEN_BRACE) return { at: '.params', text: 'Input should be an object' };
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
