const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;

/** 1 for the bytes that end a run in a string. */
const IN_STRING = new Uint8Array(256);
IN_STRING[QUOTE] = 1;
IN_STRING[BACKSLASH] = 1;

/** 1 for the bytes that count outside of strings. */
const STRUCTURE = new Uint8Array(256);
for (const char of '"[]{}') STRUCTURE[char.charCodeAt(0)] = 1;

/** 1 for what cannot be part of a number or a word. */
const DELIMITER = new Uint8Array(256);
for (const char of ' \t\r\n,:"[]{}') DELIMITER[char.charCodeAt(0)] = 1;

/**
 * Finds where a JSON value ends that comes in pieces: by quotes and brackets alone, one pass, a few numbers of state. It
 * validates nothing: for a faulty value it gives an end that is not before the fault, so that whoever then has all of its
 * bytes finds the fault in them.
 */
export interface ValueEnd {
  /**
   * Goes on at `from` (the value's first byte in its first piece, else 0). Gives the offset after the value, or -1 when it
   * takes the whole piece and may go on. A number or word ends before what follows it, so perhaps at 0.
   */
  find(bytes: Uint8Array, from: number): number;
}

/** For one value. */
export function valueEnd(): ValueEnd {
  let kind: 'unknown' | 'scalar' | 'nested' = 'unknown';
  let depth = 0;
  let inString = false;
  let escaped = false;

  const findScalar = (bytes: Uint8Array, from: number): number => {
    let at = from;
    while (at < bytes.length && DELIMITER[bytes[at]!] === 0) at++;
    return at < bytes.length ? at : -1;
  };

  const findNested = (bytes: Uint8Array, from: number): number => {
    const { length } = bytes;
    let at = from;
    while (at < length) {
      if (escaped) {
        escaped = false;
        at++;
      } else if (inString) {
        while (at < length && IN_STRING[bytes[at]!] === 0) at++;
        if (at === length) break;
        if (bytes[at++] === BACKSLASH) {
          escaped = true;
        } else {
          inString = false;
          if (depth === 0) return at;
        }
      } else {
        while (at < length && STRUCTURE[bytes[at]!] === 0) at++;
        if (at === length) break;
        const byte = bytes[at++]!;
        if (byte === QUOTE) inString = true;
        else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++;
        else if (--depth === 0) return at;
      }
    }
    return -1;
  };

  return {
    find(bytes, from) {
      if (kind === 'unknown' && from < bytes.length) {
        const first = bytes[from]!;
        kind = first === QUOTE || first === OPEN_BRACE || first === OPEN_BRACKET ? 'nested' : 'scalar';
      }
      return kind === 'nested' ? findNested(bytes, from) : findScalar(bytes, from);
    },
  };
}
