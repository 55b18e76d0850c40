import { Buffer } from 'node:buffer';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { checksumItems, type SlicedItems, sliceInTurns, sliceSubmission } from '../../../../lib/batch/submit/slice.ts';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: false });

/** The value of a reader that builds the whole body; undefined when it refuses it. */
function reference(body: Buffer): { value: unknown } | undefined {
  try {
    return { value: JSON.parse(decoder.decode(body)) };
  } catch {
    return undefined;
  }
}

function sliced(text: string | Buffer, maxItems = 1000, names?: readonly string[]) {
  const body = Buffer.from(text as string);
  const slice = sliceSubmission(body, maxItems, names);
  if (!slice.ok) expect.fail(slice.message);
  return { body, ...slice };
}

function itemTexts(body: Buffer, requests: SlicedItems | 'not_array' | null): string[] {
  if (requests === null || requests === 'not_array') expect.fail(`no items: ${requests}`);
  return Array.from(requests.offsets, (offset, i) => body.toString('utf8', offset, offset + requests.lengths[i]!));
}

function items(text: string): string[] {
  const { body, requests } = sliced(text);
  return itemTexts(body, requests);
}

function refusal(text: string | Buffer): string {
  const slice = sliceSubmission(Buffer.from(text as string), 1000);
  if (slice.ok) expect.fail('accepted');
  return `${slice.code}: ${slice.message}`;
}

describe('slicing a submission', () => {
  test('gives each element without the white space around it', () => {
    expect(items('{"requests": [ {"a": 1} ,\n\t[2]\r\n, "x" ,null,-0 ] }')).toEqual([
      '{"a": 1}',
      '[2]',
      '"x"',
      'null',
      '-0',
    ]);
  });

  test('keeps the very bytes of numbers, escapes, key order and duplicate keys', () => {
    const raw = ['{"seed": 9007199254740993}', '{"b":1,"a":2,"b":3}', '1.0', '1e400', '-0', '"\\u0000"', '"\\ud800"'];
    expect(items(`{"requests":[${raw.join(',')}]}`)).toEqual(raw);
  });

  test('is not confused by `requests` and `shape` inside items or other members', () => {
    const raw = ['{"requests":[1,2],"shape":"x"}', '"requests\\":["', '[{"requests":[{}]}]'];
    const { body, members, requests } = sliced(
      `{"x":{"requests":[9,9]},"requests":[${raw.join(',')}],"shape":"openai","y":["requests",[7]]}`,
    );
    expect(itemTexts(body, requests)).toEqual(raw);
    const shape = members.get('shape')!;
    expect(body.toString('utf8', shape.start, shape.end)).toBe('"openai"');
  });

  test('lets the last of duplicate `requests` win, whatever the earlier ones were', () => {
    expect(items('{"requests":[1,2,3],"requests":[4]}')).toEqual(['4']);
    expect(items('{"requests":5,"requests":[4]}')).toEqual(['4']);
    expect(items('{"requests":[1],"requ\\u0065sts":[]}')).toEqual([]);
    expect(sliced('{"requests":[1],"requests":{"a":[2]}}').requests).toBe('not_array');
    expect(sliced('{"requests":[1,2,3],"requests":[4]}', 2).requests).toMatchObject({ sent: 1, count: 1 });
  });

  test('tells a missing `requests` from one that is no array and from an empty one', () => {
    expect(sliced('{"shape":"openai"}').requests).toBeNull();
    expect(sliced('{}').requests).toBeNull();
    for (const value of ['null', '{}', '"[]"', '1', 'true']) {
      expect(sliced(`{"requests":${value}}`).requests).toBe('not_array');
    }
    expect(sliced('{"requests":[]}').requests).toMatchObject({ sent: 0, count: 0 });
  });

  test('reads escaped keys as what they mean', () => {
    const { body, members, requests } = sliced('{"\\u0072equ\\u0065sts":[1],"\\u0073hape":"anthropic"}');
    expect(itemTexts(body, requests)).toEqual(['1']);
    const shape = members.get('shape')!;
    expect(body.toString('utf8', shape.start, shape.end)).toBe('"anthropic"');
  });

  test('gives only the members that are asked for, the last of each', () => {
    const { members } = sliced('{"a":1,"b":22,"a":333,"c":[ ]}', 10, ['a', 'c', 'd']);
    expect([...members]).toEqual([
      ['a', { start: 18, end: 21 }],
      ['c', { start: 26, end: 29 }],
    ]);
  });

  test('accepts a byte order mark at the very start only, offsets counting from the mark', () => {
    const { body, requests } = sliced('\ufeff {"requests":[1,"é"]}');
    expect(itemTexts(body, requests)).toEqual(['1', '"é"']);
    expect(refusal(' \ufeff{}')).toBe('invalid_json: request body is not valid JSON: unexpected byte at offset 1');
    expect(refusal('\ufeff\ufeff{}')).toBe('invalid_json: request body is not valid JSON: unexpected byte at offset 3');
  });

  test('counts what is beyond the limit without keeping it', () => {
    const { requests } = sliced(`{"requests":[${Array(200).fill('{}').join(',')}]}`, 70);
    expect(requests).toMatchObject({ sent: 200, count: 70 });
    expect((requests as SlicedItems).offsets.length).toBe(70);
  });

  test('finds the boundaries of deep and of huge items', () => {
    const deep = '['.repeat(10_000) + ']'.repeat(10_000);
    const image = `{"image":"${'QUJDREVG'.repeat(500_000)}"}`;
    expect(items(`{"requests":[${deep},${image},1]}`)).toEqual([deep, image, '1']);
  });

  test('holds raw U+2028 and U+2029 inside one item', () => {
    expect(items('{"requests":["a\u2028b\u2029c"]}')).toEqual(['"a\u2028b\u2029c"']);
  });
});

describe('a submission is refused', () => {
  test.each([
    ['no bytes', '', 'invalid_json: request body is not valid JSON: unexpected end at offset 0'],
    ['only a byte order mark', '\ufeff', 'invalid_json: request body is not valid JSON: unexpected end at offset 3'],
    ['text after the end', '{} x', 'invalid_json: request body is not valid JSON: unexpected byte at offset 3'],
    ['a second document', '{}{}', 'invalid_json: request body is not valid JSON: unexpected byte at offset 2'],
    [
      'a fault within an item',
      '{"requests":[{"a":}]}',
      'invalid_json: request body is not valid JSON: unexpected byte at offset 18',
    ],
    [
      'a fault after `requests`',
      '{"requests":[1],"a":tru}',
      'invalid_json: request body is not valid JSON: unexpected byte at offset 23',
    ],
    [
      'a trailing comma in `requests`',
      '{"requests":[1,]}',
      'invalid_json: request body is not valid JSON: unexpected byte at offset 15',
    ],
    [
      'an unclosed body',
      '{"requests":[1]',
      'invalid_json: request body is not valid JSON: unexpected end at offset 15',
    ],
    ['an array', '[{"requests":[1]}]', 'invalid_value: request body must be a JSON object'],
    ['a string', '"requests"', 'invalid_value: request body must be a JSON object'],
    ['null', ' null ', 'invalid_value: request body must be a JSON object'],
    ['a faulty array', '[1', 'invalid_json: request body is not valid JSON: unexpected end at offset 2'],
  ])('for %s', (_, text, message) => {
    expect(refusal(text)).toBe(message);
  });

  test.each([
    ['a lone continuation byte', [0x22, 0x80, 0x22]],
    ['an overlong slash', [0x22, 0xc0, 0xaf, 0x22]],
    ['an encoded surrogate', [0x22, 0xed, 0xa0, 0x80, 0x22]],
    ['a cut character', [0x22, 0xe2, 0x82, 0x22]],
    ['UTF-16', [0xff, 0xfe, 0x7b, 0x00, 0x7d, 0x00]],
  ])('for %s', (_, bytes) => {
    expect(refusal(Buffer.from(bytes))).toBe('invalid_json: request body is not valid UTF-8');
  });

  test('without quoting the payload', () => {
    expect(refusal('{"requests":[{"prompt":"secret" secret}]}')).not.toContain('secret');
  });
});

describe('slicing and JSON.parse agree', () => {
  const key = fc.constantFrom('"requests"', '"requ\\u0065sts"', '"shape"', '"x"', '"request"', '"requests "');
  const space = fc.constantFrom('', '', ' ', '\n', '\r\n\t ');
  const value = fc.oneof(
    { weight: 2, arbitrary: fc.array(fc.json(), { maxLength: 4 }).map((elements) => `[${elements.join(' ,')}]`) },
    { weight: 1, arbitrary: fc.json() },
    {
      weight: 1,
      arbitrary: fc.constantFrom('1e400', '9007199254740993', '-0', '1.0', '"\\ud800"', '{"requests":[0]}'),
    },
  );
  const member = fc
    .tuple(key, space, value, space)
    .map(([k, before, v, after]) => `${before}${k}${after}:${before}${v}${after}`);
  const submission = fc
    .tuple(fc.constantFrom('', '', '\ufeff'), space, fc.array(member, { maxLength: 4 }), space)
    .map(([mark, before, members, after]) => `${mark}${before}{${before}${members.join(',')}}${after}`);

  function check(body: Buffer): boolean {
    const slice = sliceSubmission(body, 1000);
    const expected = reference(body);
    if (expected === undefined) {
      expect(slice).toMatchObject({ ok: false, code: 'invalid_json' });
      return false;
    }
    const { value } = expected;
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      expect(slice).toMatchObject({ ok: false, code: 'invalid_value' });
      return true;
    }
    if (!slice.ok) expect.fail(slice.message);
    const { requests } = value as { requests?: unknown };
    if (!Object.hasOwn(value, 'requests')) expect(slice.requests).toBeNull();
    else if (!Array.isArray(requests)) expect(slice.requests).toBe('not_array');
    else {
      const texts = itemTexts(body, slice.requests);
      expect(texts.map((text) => JSON.parse(text))).toEqual(requests);
      expect(texts.map((text) => text.trim())).toEqual(texts);
    }
    for (const [name, { start, end }] of slice.members) {
      expect(JSON.parse(body.toString('utf8', start, end))).toEqual((value as Record<string, unknown>)[name]);
    }
    expect(slice.members.has('shape')).toBe(Object.hasOwn(value, 'shape'));
    return true;
  }

  test('on random submissions', () => {
    fc.assert(
      fc.property(submission, (text) => {
        expect(check(Buffer.from(text))).toBe(true);
      }),
      { numRuns: 1000 },
    );
  });

  test('on random submissions with bytes flipped, added and cut out', () => {
    const structural = fc.constantFrom(...Buffer.from('{}[]",:\\ \n0e-u'));
    const byte = fc.oneof(structural, fc.integer({ min: 0, max: 255 }));
    const mutation = fc.record({
      at: fc.nat(),
      cut: fc.nat({ max: 3 }),
      insert: fc.array(byte, { maxLength: 2 }),
    });
    let valid = 0;
    let invalid = 0;
    fc.assert(
      fc.property(submission, fc.array(mutation, { minLength: 1, maxLength: 2 }), (text, mutations) => {
        let body = Buffer.from(text);
        for (const { at, cut, insert } of mutations) {
          const place = at % (body.length + 1);
          body = Buffer.concat([body.subarray(0, place), Buffer.from(insert), body.subarray(place + cut)]);
        }
        if (check(body)) valid++;
        else invalid++;
      }),
      { numRuns: 5000 },
    );
    expect(Math.min(valid, invalid)).toBeGreaterThan(100);
  });
});

describe('members', () => {
  test('are 100,000 at most at the top level, and as many as there are further in', () => {
    const many = (n: number) => '"x":1,'.repeat(n);
    const inside = `{"requests":[{${many(150_000)}"y":2}]}`;
    expect(sliceSubmission(Buffer.from(inside), 10)).toMatchObject({ ok: true, requests: { sent: 1 } });
    const most = `{${many(99_999)}"requests":[1]}`;
    expect(sliceSubmission(Buffer.from(most), 10)).toMatchObject({ ok: true, requests: { sent: 1 } });
    expect(sliceSubmission(Buffer.from(`{"x":1,${most.slice(1)}`), 10)).toEqual({
      ok: false,
      code: 'invalid_value',
      message: 'request body has too many members: 100001 sent, the limit is 100000',
    });
  });
});

describe('slicing in turns', () => {
  test('gives the same, and lets the event loop go round', async () => {
    const items = Array.from({ length: 3000 }, (_, i) => `{"i":${i},"x":"${'y'.repeat(1000)}"}`);
    const body = Buffer.from(`{"requests":[${items.join(', ')}],"shape":"openai"}`);
    let turns = 0;
    const count = () => {
      turns++;
      timer = setImmediate(count);
    };
    let timer = setImmediate(count);
    const slice = await sliceInTurns(body, 2000);
    clearImmediate(timer);
    expect(slice).toEqual(sliceSubmission(body, 2000));
    expect(turns).toBeGreaterThan(0);
  });

  test('finds the fault of a large body', async () => {
    const body = Buffer.from(`{"requests":["${'z'.repeat(1_500_000)}",{"a":1},}`);
    const slice = await sliceInTurns(body, 10);
    expect(slice).toMatchObject({ ok: false, code: 'invalid_json' });
    expect(slice).toEqual(sliceSubmission(body, 10));
  });
});

describe('checksums', () => {
  test('are the CRC32 of each span, unsigned', async () => {
    const { body, requests } = sliced('{"requests":["a", {"b":1}, 123456789 ]}');
    const sums = await checksumItems(body, requests as SlicedItems);
    // The check value of CRC-32 is that of 123456789; as a signed number it would be negative.
    expect([...sums]).toEqual([crc32('"a"'), crc32('{"b":1}'), 0xcbf43926]);
  });
});
