import { Buffer, isUtf8 } from 'node:buffer';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../lib/base/turns.ts';
import { sliceSubmission } from '../../../lib/batch/submit/slice.ts';
import { keyIs } from '../../../lib/json/members.ts';
import {
  type ElementEvents,
  type ElementScannerOptions,
  elementScanner,
  type StreamFault,
} from '../../../lib/json/stream-elements.ts';
import { utf8Check } from '../../../lib/json/utf8.ts';

interface Found {
  fault: StreamFault | null;
  /** `[offset, text]` of each element of the last array; null without, 'other' when it is missing. */
  elements: [number, string][] | 'other' | null;
  members: Record<string, unknown>;
}

function scan(pieces: readonly Buffer[], change: Partial<ElementScannerOptions> = {}): Found {
  const found: Found = { fault: null, elements: null, members: {} };
  const scanner = elementScanner(
    { array: 'requests', members: ['shape'], maxValueBytes: 1 << 20, ...change },
    {
      begin(isArray) {
        found.elements = isArray ? [] : 'other';
      },
      element(bytes, start, end, offset) {
        (found.elements as [number, string][]).push([offset, bytes.toString('utf8', start, end)]);
      },
      member(name, bytes, start, end) {
        found.members[name] = JSON.parse(bytes.toString('utf8', start, end));
      },
    },
  );
  for (const piece of pieces) {
    // A copy that is spoilt afterwards: nothing may be kept of a piece that was passed on.
    const copy = Buffer.from(piece);
    found.fault = atOnce(scanner.push(copy));
    copy.fill(0x20);
    if (found.fault !== null) return found;
  }
  found.fault = scanner.end();
  return found;
}

function cut(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const places = [0, ...cuts.map((at) => at % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  return places.slice(1).map((to, i) => bytes.subarray(places[i]!, to));
}

const every = (bytes: Buffer, size: number) =>
  Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) => bytes.subarray(i * size, (i + 1) * size));

/** The same by the scanner that has the whole buffer. */
function whole(bytes: Buffer): Found {
  const slice = sliceSubmission(bytes, 10_000);
  if (!slice.ok) return { fault: faultOf(slice.message), elements: null, members: {} };
  const { requests } = slice;
  const elements =
    requests === null
      ? null
      : requests === 'not_array'
        ? 'other'
        : Array.from({ length: requests.count }, (_, i): [number, string] => {
            const offset = requests.offsets[i]!;
            return [offset, bytes.toString('utf8', offset, offset + requests.lengths[i]!)];
          });
  const shape = slice.members.get('shape');
  const members = shape ? { shape: JSON.parse(bytes.toString('utf8', shape.start, shape.end)) } : {};
  return { fault: null, elements, members };
}

function faultOf(message: string): StreamFault {
  if (message.includes('UTF-8')) return { kind: 'not_utf8' };
  const [, what, offset] = /unexpected (byte|end) at offset (\d+)/.exec(message) ?? [];
  if (what === undefined) return { kind: 'not_object' };
  return { kind: 'invalid', offset: Number(offset), atEnd: what === 'end' };
}

/** Checks that both readings of a document agree: only the kind of fault depends on what is seen first. */
function expectSame(bytes: Buffer, pieces: readonly Buffer[]): boolean {
  const expected = whole(bytes);
  const found = scan(pieces);
  if (expected.fault === null) {
    expect(found).toEqual(expected);
    return true;
  }
  expect(found.fault).not.toBeNull();
  const startsAsObject = bytes.subarray(bytes.indexOf(0x7b)).length > 0 && found.fault?.kind !== 'not_object';
  if (isUtf8(bytes) && startsAsObject) expect(found.fault).toEqual(expected.fault);
  return false;
}

const space = fc.constantFrom('', '', ' ', '\n', '\r\n\t ');
const scalar = fc.constantFrom(
  '1e400',
  '9007199254740993',
  '-0',
  '1.0',
  '"\\ud800"',
  '"é\u2028𝄞"',
  'true',
  'null',
  '""',
);
const value = fc.oneof(
  { weight: 3, arbitrary: fc.array(fc.oneof(fc.json(), scalar), { maxLength: 5 }).map((all) => `[${all.join(' ,')}]`) },
  { weight: 1, arbitrary: fc.json() },
  { weight: 1, arbitrary: scalar },
);
const key = fc.constantFrom('"requests"', '"requests"', '"requ\\u0065sts"', '"shape"', '"x"', '"requests "', '"é\\""');
const member = fc
  .tuple(key, space, value, space)
  .map(([k, before, v, after]) => `${before}${k}${after}:${before}${v}${after}`);
const document = fc
  .tuple(fc.constantFrom('', '', '\ufeff'), space, fc.array(member, { maxLength: 4 }), space)
  .map(([mark, before, members, after]) => Buffer.from(`${mark}${before}{${before}${members.join(',')}}${after}`));
const cuts = fc.array(fc.nat({ max: 400 }), { maxLength: 12 });

describe('elements of a stream', () => {
  test('are those of the whole buffer, however it is cut', () => {
    fc.assert(
      fc.property(document, cuts, (bytes, at) => {
        expect(expectSame(bytes, cut(bytes, at))).toBe(true);
      }),
      { numRuns: 2000 },
    );
  });

  test('come the same byte by byte', () => {
    fc.assert(
      fc.property(document, fc.integer({ min: 1, max: 3 }), (bytes, size) => {
        expect(expectSame(bytes, every(bytes, size))).toBe(true);
      }),
      { numRuns: 500 },
    );
  });

  test('are those that JSON.parse gives', () => {
    fc.assert(
      fc.property(document, cuts, (bytes, at) => {
        const parsed = JSON.parse(bytes.toString().replace(/^\ufeff/, ''));
        const { elements, fault } = scan(cut(bytes, at));
        expect(fault).toBeNull();
        if (!Object.hasOwn(parsed, 'requests')) expect(elements).toBeNull();
        else if (!Array.isArray(parsed.requests)) expect(elements).toBe('other');
        else {
          expect((elements as [number, string][]).map(([, text]) => JSON.parse(text))).toEqual(parsed.requests);
          for (const [offset, text] of elements as [number, string][]) {
            expect(bytes.toString('utf8', offset, offset + Buffer.byteLength(text))).toBe(text);
          }
        }
      }),
      { numRuns: 1000 },
    );
  });

  test('are refused where the whole buffer is, at the same offset, with bytes flipped, added and cut out', () => {
    const structural = fc.constantFrom(...Buffer.from('{}[]",:\\ \n0e-u'));
    const byte = fc.oneof(structural, fc.integer({ min: 0, max: 255 }));
    const mutation = fc.record({ at: fc.nat(), cut: fc.nat({ max: 3 }), insert: fc.array(byte, { maxLength: 2 }) });
    let valid = 0;
    let invalid = 0;
    fc.assert(
      fc.property(document, fc.array(mutation, { minLength: 1, maxLength: 2 }), cuts, (original, mutations, at) => {
        let bytes = original;
        for (const change of mutations) {
          const place = change.at % (bytes.length + 1);
          const rest = bytes.subarray(place + change.cut);
          bytes = Buffer.concat([bytes.subarray(0, place), Buffer.from(change.insert), rest]);
        }
        if (expectSame(bytes, cut(bytes, at))) valid++;
        else invalid++;
      }),
      { numRuns: 5000 },
    );
    expect(Math.min(valid, invalid)).toBeGreaterThan(100);
  });

  test('are refused at a byte behind a word that no word has, where the document ends with it', () => {
    const bytes = Buffer.from('{"x":true\0');
    for (let size = 1; size <= bytes.length; size++) expect(expectSame(bytes, every(bytes, size))).toBe(false);
  });

  test('tell their members on the way, however they are cut', () => {
    const bytes = Buffer.from('{"requests":[{"a":[1,{"b":"}"}],"\\u0062":{}}, 17 ,["a"],{"b":1,"b":2}],"b":3}');
    for (let size = 1; size <= bytes.length; size++) {
      const seen: string[] = [];
      let name = '';
      const events: ElementEvents = {
        bytes: Buffer.alloc(0),
        begin: () => seen.push('begin'),
        key(keyAt) {
          name = ['a', 'b'].find((one) => keyIs(events.bytes, keyAt, one)) ?? '?';
        },
        value: (start, end) => seen.push(`${name}=${events.bytes.toString('utf8', start, end)}`),
      };
      const { elements, fault } = scan(every(bytes, size), { events });
      expect(fault).toBeNull();
      expect(elements).toHaveLength(4);
      const members = ['begin', 'a=[1,{"b":"}"}]', 'b={}', 'begin', 'begin', 'b="a"', 'begin', 'b=1', 'b=2'];
      expect(seen).toEqual(members);
    }
  });

  test('over the limit are refused with where they begin, whole or in pieces, and no later than that', () => {
    const at = (text: string) => Buffer.from(`{"a":${text},"requests":[1,${text}]}`);
    for (const size of [7, 1000]) {
      const ten = at(`"${'x'.repeat(8)}"`);
      expect(scan(every(ten, size), { maxValueBytes: 10 }).fault).toBeNull();
      const element = Buffer.from(`{"requests":[1,"${'x'.repeat(9)}"]}`);
      expect(scan(every(element, size), { maxValueBytes: 10 }).fault).toEqual({
        kind: 'too_long',
        offset: 15,
        element: true,
      });
      const other = Buffer.from(`{"a":[${'1,'.repeat(20)}1]}`);
      expect(scan(every(other, size), { maxValueBytes: 10 }).fault).toEqual({
        kind: 'too_long',
        offset: 5,
        element: false,
      });
    }
    const scanner = elementScanner(
      { array: 'requests', members: [], maxValueBytes: 10 },
      { begin() {}, element() {}, member() {} },
    );
    const open = [Buffer.from('{"requests":["xxxx'), Buffer.from('yyyyyyyyy')];
    expect(open.map((piece) => atOnce(scanner.push(piece))?.kind)).toEqual([undefined, 'too_long']);
  });

  test('of a document that is cut off are no document', () => {
    const bytes = Buffer.from('\ufeff {"requests":[{"a":1.5e3},"é"],"x":tr\\u0075e} '.replace('tr\\u0075e', 'true'));
    expect(scan([bytes]).fault).toBeNull();
    for (let length = 0; length < bytes.length - 1; length++) {
      const part = bytes.subarray(0, length);
      const { fault } = scan(every(part, 5));
      expect(fault).toEqual(isUtf8(part) ? { kind: 'invalid', offset: length, atEnd: true } : { kind: 'not_utf8' });
    }
  });

  test.each(['[1]', '"requests"', ' null ', '12'])('of %s there are none: it is no object', (text) => {
    expect(scan([Buffer.from(text)]).fault).toEqual({ kind: 'not_object' });
  });
});

describe('UTF-8 in pieces', () => {
  test('is what it is as a whole', () => {
    const byte = fc.oneof(
      fc.constantFrom(...Buffer.from('é€𝄞a')),
      fc.constantFrom(0xc0, 0xe0, 0xed, 0xa0, 0xf0, 0xf4, 0x90, 0xf8, 0xff, 0x80),
    );
    const bytes = fc.oneof(
      fc.string({ unit: 'binary' }).map((text) => Buffer.from(text)),
      fc.array(byte, { maxLength: 8 }).map((all) => Buffer.from(all)),
    );
    let wrong = 0;
    fc.assert(
      fc.property(bytes, cuts, (text, at) => {
        const check = utf8Check();
        const good = cut(text, at).every((piece) => check.push(piece)) && check.end();
        expect(good).toBe(isUtf8(text));
        if (!good) wrong++;
      }),
      { numRuns: 5000 },
    );
    expect(wrong).toBeGreaterThan(100);
  });
});
