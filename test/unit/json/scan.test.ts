import { Buffer } from 'node:buffer';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { findMembers, keyIs } from '../../../lib/json/members.ts';
import { bomLength, faultText, skipSpace } from '../../../lib/json/scan.ts';
import { advance, endWalk, startDocument, startWalk, type Walk, walkAtOnce } from '../../../lib/json/walk.ts';

/** After the document's one value: `end` itself if only white space follows, or the fault. */
function expectEnd(bytes: Uint8Array, end: number): number {
  if (end < 0) return end;
  const rest = skipSpace(bytes, end);
  return rest < bytes.length ? -1 - rest : end;
}

/**
 * Passes one value of any depth; `from` must be its first byte, white space before it is a fault. Returns the offset behind
 * it, or the fault as in scan.ts.
 */
function skipValue(bytes: Uint8Array, from: number): number {
  return walkAtOnce(startWalk(from), bytes);
}

/** Where a walk ends that can never see more than the next byte. */
function byteByByte(walk: Walk, bytes: Buffer): number {
  for (let stop = 1; stop <= bytes.length; stop++) {
    const copy = Buffer.alloc(bytes.length, 0x22); // a walk that looked ahead would see quotes
    bytes.copy(copy, 0, 0, stop);
    if (!advance(walk, copy, stop)) break;
  }
  return endWalk(walk, bytes.length);
}

/** The fault of a whole document, or null. */
function fault(text: string | Buffer): string | null {
  const bytes = Buffer.from(text as string);
  const end = expectEnd(bytes, skipValue(bytes, skipSpace(bytes, 0)));
  // A walk through the document says the same, as a whole and with a stop at every byte.
  const whole = walkAtOnce(startDocument(0), bytes);
  expect(Math.min(whole, 0)).toBe(Math.min(end, 0));
  if (bytes.length <= 2000) expect(byteByByte(startDocument(0), bytes)).toBe(whole);
  return end < 0 ? faultText(bytes, end) : null;
}

function parses(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

describe('the scanner accepts what JSON.parse accepts', () => {
  test.each([
    'null',
    'true',
    'false',
    '0',
    '-0',
    '1.0',
    '1e400',
    '-1E+2',
    '9007199254740993',
    '0.1e-7',
    '""',
    '"\\u0000\\ud800\\uDFFF\\"\\\\\\/\\b\\f\\n\\r\\t"',
    '"\u007f\u2028\u2029é😀"',
    '[]',
    '{}',
    '[ ]',
    '{ }',
    ' \t\r\n[ 1 , { "a" : [ ] , "a" : { } } ]\n',
    '{"a":1,"b":[true,false,null]}',
  ])('%j', (text) => {
    expect(parses(text)).toBe(true);
    expect(fault(text)).toBeNull();
  });
});

describe('the scanner refuses, naming the offset of the first wrong byte', () => {
  test.each([
    ['', 'unexpected end at offset 0'],
    ['  ', 'unexpected end at offset 2'],
    ['tru', 'unexpected end at offset 3'],
    ['nul!', 'unexpected byte at offset 3'],
    ['falsE', 'unexpected byte at offset 4'],
    ['True', 'unexpected byte at offset 0'],
    ['NaN', 'unexpected byte at offset 0'],
    ['01', 'unexpected byte at offset 1'],
    ['-', 'unexpected end at offset 1'],
    ['-a', 'unexpected byte at offset 1'],
    ['+1', 'unexpected byte at offset 0'],
    ['.5', 'unexpected byte at offset 0'],
    ['1.', 'unexpected end at offset 2'],
    ['1.e1', 'unexpected byte at offset 2'],
    ['1e', 'unexpected end at offset 2'],
    ['1e+', 'unexpected end at offset 3'],
    ['1e+x', 'unexpected byte at offset 3'],
    ['0x1', 'unexpected byte at offset 1'],
    ['1 2', 'unexpected byte at offset 2'],
    ['"a', 'unexpected end at offset 2'],
    ["'a'", 'unexpected byte at offset 0'],
    ['"a\nb"', 'unexpected byte at offset 2'],
    ['"\u0000"', 'unexpected byte at offset 1'],
    ['"\u001f"', 'unexpected byte at offset 1'],
    ['"\\x41"', 'unexpected byte at offset 2'],
    ['"\\', 'unexpected end at offset 2'],
    ['"\\"', 'unexpected end at offset 3'],
    ['"\\u00g0"', 'unexpected byte at offset 5'],
    ['"\\u00', 'unexpected end at offset 5'],
    ['"\\U0041"', 'unexpected byte at offset 2'],
    ['[', 'unexpected end at offset 1'],
    ['[1', 'unexpected end at offset 2'],
    ['[1,', 'unexpected end at offset 3'],
    ['[1,]', 'unexpected byte at offset 3'],
    ['[,1]', 'unexpected byte at offset 1'],
    ['[1 2]', 'unexpected byte at offset 3'],
    ['[1}', 'unexpected byte at offset 2'],
    ['{"a":1]', 'unexpected byte at offset 6'],
    ['{]', 'unexpected byte at offset 1'],
    ['[}', 'unexpected byte at offset 1'],
    ['{', 'unexpected end at offset 1'],
    ['{"a"', 'unexpected end at offset 4'],
    ['{"a":', 'unexpected end at offset 5'],
    ['{"a" 1}', 'unexpected byte at offset 5'],
    ['{"a":}', 'unexpected byte at offset 5'],
    ['{"a":1,}', 'unexpected byte at offset 7'],
    ['{,}', 'unexpected byte at offset 1'],
    ['{a:1}', 'unexpected byte at offset 1'],
    ['{1:1}', 'unexpected byte at offset 1'],
    ['{"a":1}}', 'unexpected byte at offset 7'],
    ['[]]', 'unexpected byte at offset 2'],
    ['null\u0000', 'unexpected byte at offset 4'],
    ['\u00a01', 'unexpected byte at offset 0'],
    ['\f1', 'unexpected byte at offset 0'],
    ['[1,\v2]', 'unexpected byte at offset 3'],
    ['\ufeff1', 'unexpected byte at offset 0'],
    ['/* */1', 'unexpected byte at offset 0'],
  ])('%j: %s', (text, message) => {
    expect(parses(text)).toBe(false);
    expect(fault(text)).toBe(message);
  });
});

describe('the scanner and JSON.parse agree', () => {
  const document = fc.oneof(
    fc.json(),
    fc.jsonValue().map((value) => JSON.stringify(value, null, 2)),
  );

  test('on random documents', () => {
    fc.assert(
      fc.property(document, (text) => {
        expect(fault(text)).toBeNull();
      }),
      { numRuns: 500 },
    );
  });

  test('on random documents with changed, added and missing characters', () => {
    const character = fc.oneof(
      fc.constantFrom(...'{}[]",:\\/0123456789eE+-.untrfals \t\n\r'),
      fc.integer({ min: 0, max: 127 }).map((code) => String.fromCharCode(code)),
    );
    const mutation = fc.record({
      at: fc.nat(),
      cut: fc.nat({ max: 2 }),
      insert: fc.array(character, { maxLength: 2 }),
    });
    let refused = 0;
    let accepted = 0;
    fc.assert(
      fc.property(document, fc.array(mutation, { minLength: 1, maxLength: 3 }), (text, mutations) => {
        let mutated = text;
        for (const { at, cut, insert } of mutations) {
          const place = at % (mutated.length + 1);
          mutated = mutated.slice(0, place) + insert.join('') + mutated.slice(place + cut);
        }
        // Cutting a surrogate pair leaves a half that Buffer.from replaces: both sides see the replaced text.
        mutated = Buffer.from(mutated).toString();
        const valid = parses(mutated);
        if (valid) accepted++;
        else refused++;
        expect(fault(mutated) === null).toBe(valid);
      }),
      { numRuns: 5000 },
    );
    expect(Math.min(accepted, refused)).toBeGreaterThan(100);
  });

  test('on random strings of JSON tokens', () => {
    const token = fc.constantFrom(...'{}[],:', '"a"', '"\\"', '1', '-', 'null', ' ', '"', '0.5', 'e1');
    fc.assert(
      fc.property(fc.array(token, { maxLength: 12 }), (tokens) => {
        const text = tokens.join('');
        expect(fault(text) === null).toBe(parses(text));
      }),
      { numRuns: 5000 },
    );
  });

  test('on every short string over the alphabet of numbers', () => {
    const alphabet = [...'-+01.eE'];
    let texts = [''];
    for (let length = 1; length <= 5; length++) {
      texts = texts.flatMap((text) => alphabet.map((char) => text + char));
      for (const text of texts) {
        if ((fault(text) === null) !== parses(text)) expect.fail(text);
      }
    }
  });

  test('on every byte at every place of long strings, which are read in words', () => {
    const length = 300;
    for (const byte of [0x00, 0x1f, 0x20, 0x21, 0x22, 0x5b, 0x5c, 0x7f]) {
      for (let at = 100; at < length; at++) {
        const bytes = Buffer.alloc(length + 2, 0x61);
        bytes[0] = 0x22;
        bytes[length + 1] = 0x22;
        bytes[at] = byte;
        if ((fault(bytes) === null) !== parses(bytes.toString())) expect.fail(`byte ${byte} at ${at}`);
      }
    }
  });

  test('on long strings of non-ASCII text at any alignment', () => {
    for (let shift = 0; shift < 8; shift++) {
      const bytes = Buffer.from(`${' '.repeat(shift)}"${'é東😀\u00a0'.repeat(100)}"`);
      expect(fault(bytes)).toBeNull();
      expect(fault(bytes.subarray(0, -1))).toBe(`unexpected end at offset ${bytes.length - 1}`);
    }
  });
});

describe('nesting', () => {
  test.each([30, 32, 34, 62, 64, 66, 10_000, 1_000_000])('%d levels are no deeper than one', (levels) => {
    const text = `${'[{"a":'.repeat(levels / 2)}1${'}]'.repeat(levels / 2)}`;
    expect(fault(text)).toBeNull();
    expect(fault(text.slice(0, -1))).toBe(`unexpected end at offset ${text.length - 1}`);
  });

  test('remembers the kind of each of many levels', () => {
    fc.assert(
      fc.property(fc.array(fc.boolean(), { minLength: 1, maxLength: 200 }), fc.nat(), (kinds, pick) => {
        const open = kinds.map((isObject) => (isObject ? '{"k":' : '[')).join('');
        const closing = kinds.map((isObject) => (isObject ? '}' : ']')).reverse();
        expect(fault(`${open}0${closing.join('')}`)).toBeNull();
        const wrong = pick % closing.length;
        closing[wrong] = closing[wrong] === '}' ? ']' : '}';
        expect(fault(`${open}0${closing.join('')}`)).toBe(`unexpected byte at offset ${open.length + 1 + wrong}`);
      }),
    );
  });
});

describe('members and elements', () => {
  test('a byte order mark is three bytes, a shorter start of one is none', () => {
    expect(bomLength(Buffer.from('\ufeff{}'))).toBe(3);
    expect(bomLength(Buffer.from([0xef, 0xbb]))).toBe(0);
    expect(bomLength(Buffer.from('{}'))).toBe(0);
  });

  /** The events of a walk on the outer levels, in order. */
  function told(text: string, levels: number): { events: string[]; end: number } {
    const events: string[] = [];
    const bytes = Buffer.from(text);
    const walk = startWalk(0, levels, {
      key: (at, depth) => events.push(`${depth} key ${at}`),
      value: (start, end, depth) => events.push(`${depth} ${text.slice(start, end)}`),
    });
    return { events, end: walkAtOnce(walk, bytes) };
  }

  test('a walk tells of members and elements with white space anywhere, and of duplicates', () => {
    const text = '{ "a" : 1 , "b" : [ ] ,"a":\n{"c":2} } ';
    const again = text.lastIndexOf('"a"');
    const { events, end } = told(text, 1);
    expect(events).toEqual(['1 key 2', '1 1', '1 key 12', '1 [ ]', `1 key ${again}`, '1 {"c":2}']);
    expect(end).toBe(text.length - 1);
  });

  test('a walk tells of inner levels before the outer ones, and of none beyond the deepest', () => {
    expect(told('[[1,{"k":[2]}],"x"]', 0).events).toEqual([]);
    expect(told('[[1,{"k":[2]}],"x"]', 2).events).toEqual(['2 1', '2 {"k":[2]}', '1 [1,{"k":[2]}]', '1 "x"']);
    expect(told('[[1,{"k":[2]}],"x"]', 3).events).toEqual([
      '2 1',
      '3 key 5',
      '3 [2]',
      '2 {"k":[2]}',
      '1 [1,{"k":[2]}]',
      '1 "x"',
    ]);
  });

  test.each([
    ['{"a":1', 6],
    ['{"a":1 x', 7],
    ['{"a":1,}', 7],
    ['{"a":1,', 7],
    ['{"a"}', 4],
    ['{"a":!}', 5],
    ['[1', 2],
    ['[1 x', 3],
    ['[1,]', 3],
    ['[!]', 1],
    [' 1', 0],
  ])('the fault of %j is at %d', (text, offset) => {
    expect(told(text, 1).end).toBe(-1 - offset);
  });

  test('a key is compared by what it means, however it is escaped', () => {
    const escaped = fc.constantFrom('requests', 'request', 'requestsx', 'Requests', '').chain((name) =>
      fc.tuple(
        fc.constant(name),
        fc
          .array(fc.boolean(), { minLength: name.length, maxLength: name.length })
          .map((flags) =>
            [...name].map((char, i) => (flags[i] ? `\\u00${char.charCodeAt(0).toString(16)}` : char)).join(''),
          ),
      ),
    );
    fc.assert(
      fc.property(escaped, ([name, key]) => {
        expect(keyIs(Buffer.from(`"${key}":1`), 0, 'requests')).toBe(name === 'requests');
      }),
    );
  });

  test('a key of escapes alone is the longest that is decoded', () => {
    const escaped = (name: string) => [...name].map((char) => `\\u00${char.charCodeAt(0).toString(16)}`).join('');
    expect(keyIs(Buffer.from(`"${escaped('requests')}":1`), 0, 'requests')).toBe(true);
    expect(keyIs(Buffer.from(`"${escaped('requestss')}":1`), 0, 'requests')).toBe(false);
  });

  test.each(['"a\\"', '"\\\\"', '"\\n"', '"é"', '"\\u0061\\u0062"'])('the key %s is not `a`', (key) => {
    expect(keyIs(Buffer.from(`${key}:1`), 0, 'a')).toBe(false);
  });

  test('finds the last of duplicate members, and nothing inside nested values', () => {
    const text = '{"usage":1,"x":{"usage":2},"us\\u0061ge": {"n":3} ,"y":["usage",{"error":4}]}';
    const found = findMembers(Buffer.from(text), ['usage', 'error']);
    if (found.kind !== 'object') expect.fail(found.kind);
    expect([...found.members].map(([name, { start, end }]) => [name, text.slice(start, end)])).toEqual([
      ['usage', '{"n":3}'],
    ]);
  });
});
