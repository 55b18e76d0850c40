import { randomBytes } from 'node:crypto';
import * as zlib from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../lib/base/turns.ts';
import { judgeBody, judgeLargeBody } from '../../../lib/upstream/classify.ts';
import { type DecodeRoom, decodeBody } from '../../../lib/upstream/decode.ts';
import { parseRetryAfter, readResponseHead } from '../../../lib/upstream/response-head.ts';

const MIB = 1024 * 1024;
const ROOM: DecodeRoom = { begin: async () => {}, reserve: async () => {}, finish() {} };

describe('Retry-After', () => {
  const NOW = Date.UTC(2026, 0, 1, 12, 0, 0);
  const at = (ms: number) => new Date(ms).toUTCString();

  test.each([
    ['30', 30_000],
    ['0', 0],
    [' 7 ', 7_000],
    ['1.5', 1_500],
    [at(NOW + 60_000), 60_000],
    [at(NOW - 60_000), 0],
  ])('%s asks for %i ms', (value, expected) => {
    expect(parseRetryAfter(value, null, NOW)).toBe(expected);
  });

  test.each(['', 'soon', '-5', '1e3', '2026-01-01', 'Wed, 99 Foo 2026', '99999999999999999999'])(
    '%o counts as none',
    (value) => {
      expect(parseRetryAfter(value, null, NOW)).toBeNull();
    },
  );

  test('as a date is relative to the Date header, whatever our own clock says', () => {
    expect(parseRetryAfter(at(NOW + 90_000), at(NOW + 60_000), NOW)).toBe(30_000);
    expect(parseRetryAfter(at(NOW + 90_000), 'no date', NOW)).toBe(90_000);
  });
});

describe('an answer head', () => {
  const head = (...pairs: string[]) => readResponseHead(pairs.map((text) => Buffer.from(text, 'latin1')));

  test('is read whatever the case of its names', () => {
    expect(
      head(
        'Content-Type',
        'text/html',
        'CONTENT-ENCODING',
        'GZIP',
        'Retry-After',
        '3',
        'Date',
        'd',
        'Content-Length',
        '9',
      ),
    ).toMatchObject({
      contentType: 'text/html',
      contentEncoding: 'gzip',
      retryAfter: '3',
      date: 'd',
      contentLength: 9,
    });
  });

  test('gives x-request-id before request-id, cut to 128 characters without control characters', () => {
    expect(head('request-id', 'a', 'x-request-id', 'b').requestId).toBe('b');
    expect(head('request-id', 'a').requestId).toBe('a');
    expect(head('x-request-id', `\x01${'x'.repeat(500)}`).requestId).toBe(`\\u0001${'x'.repeat(127)}`);
  });

  test('without headers has nothing', () => {
    expect(Object.values(head())).toEqual([null, null, null, null, null, null]);
  });
});

describe('Content-Encoding', () => {
  const text = Buffer.from('{"choices":[]}');
  const decode = async (encoding: string | null, raw: Buffer, max = MIB) =>
    decodeBody(encoding, raw, { maxBytes: max, room: ROOM });

  test.each([
    [null, text],
    ['identity', text],
    ['gzip', zlib.gzipSync(text)],
    ['x-gzip', zlib.gzipSync(text)],
    ['deflate', zlib.deflateSync(text)],
    ['deflate', zlib.deflateRawSync(text)],
    ['br', zlib.brotliCompressSync(text)],
    ['zstd', zlib.zstdCompressSync(text)],
    ['gzip, br', zlib.brotliCompressSync(zlib.gzipSync(text))],
  ])('%s is undone', async (encoding, raw) => {
    expect(await decode(encoding, raw)).toEqual({ body: text });
  });

  test.each([
    ['snappy', text, 'unknown_encoding'],
    ['gzip, snappy', text, 'unknown_encoding'],
    ['gzip', text, 'corrupt'],
    ['gzip', zlib.gzipSync(text).subarray(0, -6), 'corrupt'],
    ['br', Buffer.from([0xff, 0xff]), 'corrupt'],
    ['zstd', text, 'corrupt'],
    ['deflate', text, 'corrupt'],
  ])('%s over bytes that are none is a fault, not an exception', async (encoding, raw, fault) => {
    expect(await decode(encoding, raw)).toEqual({ fault });
  });

  test.each([
    ['gzip', zlib.gzipSync],
    ['br', zlib.brotliCompressSync],
    ['zstd', zlib.zstdCompressSync],
    ['deflate', zlib.deflateSync],
  ] as const)('%s stops at the limit, and passes one byte below it', async (encoding, encode) => {
    for (const size of [3000, 3 * MIB]) {
      const raw = encode(Buffer.alloc(size, 'x'));
      expect(await decode(encoding, raw, size - 1)).toEqual({ fault: 'too_large' });
      expect(await decode(encoding, raw, size)).toEqual({ body: Buffer.alloc(size, 'x') });
    }
  });
});

describe('a compressed body', () => {
  const limits = { maxBytes: 64 * MIB, room: ROOM };
  const dense = Buffer.alloc(9 * MIB, 'x');

  test('of more than 8 MiB is 200 times as large as what was sent, at most', async () => {
    const coders = { gzip: zlib.gzipSync, br: zlib.brotliCompressSync, zstd: zlib.zstdCompressSync };
    for (const [coding, encode] of Object.entries(coders)) {
      expect(await decodeBody(coding, encode(dense), limits)).toEqual({ fault: 'too_large' });
      expect(await decodeBody(coding, encode(dense.subarray(0, 8 * MIB)), limits)).toHaveProperty('body');
    }
    // Hexadecimal of random bytes compresses about twice.
    const usual = Buffer.from(randomBytes(5 * MIB).toString('hex'));
    expect(await decodeBody('gzip', zlib.gzipSync(usual, { level: 1 }), limits)).toEqual({ body: usual });
  });

  test('has two codings at most', async () => {
    const text = Buffer.from('{}');
    const three = zlib.gzipSync(zlib.gzipSync(zlib.gzipSync(text)));
    expect(await decodeBody('gzip, gzip, gzip', three, limits)).toEqual({ fault: 'unknown_encoding' });
  });

  test('reserves memory before it is decoded, and stops where that ends', async () => {
    const events: string[] = [];
    let reserved = 0;
    let left = 4;
    const full = Promise.withResolvers<void>();
    const more = Promise.withResolvers<void>();
    const room: DecodeRoom = {
      async begin() {
        events.push('begin');
      },
      async reserve(bytes) {
        reserved += bytes;
        if (--left !== 0) return;
        events.push('full');
        full.resolve();
        await more.promise;
      },
      finish: () => events.push('finish'),
    };
    const body = Buffer.alloc(3 * MIB, 'x');
    const decoding = decodeBody('gzip', zlib.gzipSync(body), { maxBytes: 64 * MIB, room });
    await full.promise;
    // The thread pool has nothing to do for it: everything else is decoded first.
    await decodeBody('gzip', zlib.gzipSync(body), { maxBytes: 64 * MIB, room: ROOM });
    expect(events).toEqual(['begin', 'full']);
    expect(reserved).toBeLessThanOrEqual(MIB);
    more.resolve();
    expect(await decoding).toEqual({ body });
    expect(events).toEqual(['begin', 'full', 'finish']);
    expect(reserved).toBeGreaterThanOrEqual(body.length);
    expect(reserved).toBeLessThan(body.length + MIB);
  });
});

describe('the body of a 2xx', () => {
  const pad = `"pad":"${'x'.repeat(MIB)}"`;
  /** As a whole, and in steps: both must say the same. */
  const judge = (text: string | Buffer, adapter: Parameters<typeof judgeBody>[0] = 'openai') => {
    const body = Buffer.from(text as string);
    const { badReason } = judgeBody(adapter, body);
    expect(atOnce(judgeLargeBody(adapter, body)).badReason).toBe(badReason);
    return badReason;
  };

  test.each([
    ['openai', 'choices'],
    ['openai_responses', 'output'],
    ['anthropic', 'content'],
    ['openai_embeddings', 'data'],
  ] as const)('of %s is a response with %s, even beside an error', (adapter, field) => {
    for (const more of ['"n":1', pad]) {
      expect(judge(`{${more},"error":{"code":1},"${field}":[]}`, adapter)).toBeNull();
      expect(judge(`{${more},"error":{"code":1}}`, adapter)).toBe('error_inside');
      expect(judge(`{${more},"error":{"code":1},"${field}":null}`, adapter)).toBe('error_inside');
      expect(judge(`{${more},"error":null}`, adapter)).toBeNull();
      expect(judge(`{${more}}`, adapter)).toBeNull();
      expect(judge(`{${more},"error":"x"}`, adapter)).toBe('error_inside');
      expect(judge(`{${more},"deep":{"error":1}}`, adapter)).toBeNull();
    }
  });

  test.each(['', ' ', '<html>', '{', '{"a":1}}', '\uFEFF{}', "{'a':1}", '{"a":NaN}'])('%o is not JSON', (text) => {
    expect(judge(text)).toBe('not_json');
  });

  test.each(['null', '[]', '"{}"', '1', 'true'])('%s is no response', (text) => {
    expect(judge(text)).toBe('no_response');
  });

  test('that is not UTF-8 is not JSON, at any size', () => {
    expect(judge(Buffer.from('{"a":"\xe9"}', 'latin1'))).toBe('not_json');
    expect(judge(Buffer.from(`{${pad},"a":"\xe9"}`, 'latin1'))).toBe('not_json');
  });

  test('that is large is not built: only the members that count are', () => {
    expect(judge(`[${pad.slice(6)}]`)).toBe('no_response');
    expect(judge(`{${pad}`)).toBe('not_json');
    const body = Buffer.from(`{${pad},"choices":[{"x":1,"finish_reason":"stop"}],"usage":{"total_tokens":1}}`);
    expect(atOnce(judgeLargeBody('openai', body))).toEqual({
      badReason: null,
      parsed: { choices: [{ finish_reason: 'stop' }], usage: { total_tokens: 1 } },
    });
  });

  test('with inherited names as keys is judged by its own members', () => {
    expect(judge('{"__proto__":{"error":1}}')).toBeNull();
    expect(judge('{"error":1,"__proto__":{"choices":[]}}')).toBe('error_inside');
  });
});
