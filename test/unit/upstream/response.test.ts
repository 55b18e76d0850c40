import { randomBytes } from 'node:crypto';
import * as zlib from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../lib/base/turns.ts';
import { type DecodeRoom, decodeBody } from '../../../lib/upstream/decode.ts';
import { judgeBody, judgeLargeBody } from '../../../lib/upstream/judge-answer.ts';
import { parseRetryAfter, readResponseHead, retryAfterOf } from '../../../lib/upstream/response-head.ts';
import { shownMessage } from '../../../lib/upstream/told-error.ts';

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

  test.each([
    [{ retryAfterMs: '1500' }, 1500],
    [{ retryAfterMs: ' 0.2 ' }, 1],
    [{ retryAfterMs: '0', retryAfter: '30' }, 0],
    [{ retryAfterMs: '250', retryAfter: '30' }, 250],
    [{ retryAfterMs: '-1', retryAfter: '30' }, 30_000],
    [{ retryAfterMs: 'soon', retryAfter: '30' }, 30_000],
    [{ retryAfterMs: '', retryAfter: null }, null],
    [{ retryAfter: '30' }, 30_000],
    [{}, null],
  ])('in milliseconds counts first: %j', (head, expected) => {
    expect(retryAfterOf({ retryAfter: null, retryAfterMs: null, date: null, ...head }, NOW)).toBe(expected);
  });

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

  test('has the pause in milliseconds, of OpenAI before that of Azure', () => {
    expect(head('Retry-After-Ms', '20').retryAfterMs).toBe('20');
    expect(head('x-ms-retry-after-ms', '30').retryAfterMs).toBe('30');
    expect(head('x-ms-retry-after-ms', '30', 'retry-after-ms', '20').retryAfterMs).toBe('20');
    expect(head('retry-after-ms', '20', 'x-ms-retry-after-ms', '30').retryAfterMs).toBe('20');
  });

  test('gives x-request-id before request-id, cut to 128 characters without control characters', () => {
    expect(head('request-id', 'a', 'x-request-id', 'b').requestId).toBe('b');
    expect(head('request-id', 'a').requestId).toBe('a');
    expect(head('x-request-id', `\x01${'x'.repeat(500)}`).requestId).toBe(`\\u0001${'x'.repeat(127)}`);
  });

  test('without headers has nothing', () => {
    expect(Object.values(head())).toEqual([null, null, null, null, null, null, null]);
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
  const ADAPTERS = ['openai', 'openai_responses', 'anthropic', 'openai_embeddings'] as const;
  type Call = Parameters<typeof judgeBody>[0];
  /** As a whole, and in steps: both must say the same. */
  const judged = (answer: unknown, call: Call) => {
    const body = Buffer.from(typeof answer === 'string' || Buffer.isBuffer(answer) ? answer : JSON.stringify(answer));
    const { parsed: _, ...judgement } = judgeBody(call, body);
    const { parsed: __, ...large } = atOnce(judgeLargeBody(call, body));
    expect(large).toEqual(judgement);
    return judgement;
  };
  const judge = (text: string | Buffer, adapter: Call['adapter'] = 'openai') => judged(text, { adapter }).badReason;

  test.each([
    ['openai', '"choices":[]'],
    ['openai_responses', '"output":[]'],
    ['anthropic', '"content":[]'],
    ['openai_embeddings', '"data":[{"embedding":[1]}]'],
  ] as const)('of %s is a response with %s, even beside an error', (adapter, field) => {
    const name = field.slice(0, field.indexOf(':'));
    for (const more of ['"n":1', pad]) {
      expect(judge(`{${more},${field}}`, adapter)).toBeNull();
      expect(judge(`{${more},"error":{"code":1},${field}}`, adapter)).toBeNull();
      expect(judge(`{${more},"error":null,${field}}`, adapter)).toBeNull();
      expect(judge(`{${more},"error":{"code":1}}`, adapter)).toBe('error_inside');
      expect(judge(`{${more},"error":{"code":1},${name}:null}`, adapter)).toBe('error_inside');
      expect(judge(`{${more},"error":"x"}`, adapter)).toBe('error_inside');
      expect(judge(`{${more},"error":null}`, adapter)).toBe('no_response');
      for (const odd of ['null', '{}', '"[]"', '0', 'true', '{"0":{}}']) {
        expect(judge(`{${more},${name}:${odd}}`, adapter)).toBe('no_response');
        expect(judge(`{${more},${field},${name}:${odd}}`, adapter)).toBe('no_response');
        expect(judge(`{${more},${name}:${odd},${field}}`, adapter)).toBeNull();
      }
      expect(judge(`{${more},"deep":{"error":1,${field}}}`, adapter)).toBe('no_response');
    }
  });

  test.each(ADAPTERS)('of %s without a result is no response', (adapter) => {
    for (const body of ['{}', '{"detail":"Not Found"}', '{"message":"x"}', '{"success":false,"errors":[{}]}']) {
      expect(judged(body, { adapter })).toEqual({ class: 'bad_response', badReason: 'no_response', message: null });
    }
  });

  test.each(ADAPTERS)('of %s that calls itself an error is one, whatever else it has', (adapter) => {
    const more = { choices: [], output: [], content: [], data: [{ embedding: [1] }] };
    const vllm = { object: 'error', message: 'too long', type: 'BadRequestError', param: null, code: 400, ...more };
    expect(judged(vllm, { adapter })).toEqual({
      class: 'bad_response',
      badReason: 'error_inside',
      message: 'too long',
    });
    const anthropic = { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' }, ...more };
    expect(judged(anthropic, { adapter })).toEqual({
      class: 'server_error',
      badReason: 'error_inside',
      message: 'Overloaded',
    });
  });

  test('of Chat Completions with a choice that failed, wherever it stands, is an error', () => {
    const fine = {
      index: 0,
      message: { content: 'x', error: 1, finish_reason: 'error' },
      finish_reason: 'stop',
      error: null,
    };
    const chat = (...choices: unknown[]) => judged({ id: 'x', choices }, { adapter: 'openai' });
    expect(chat(fine, fine).badReason).toBeNull();
    for (const before of [[], [fine], [fine, fine]]) {
      expect(chat(...before, { finish_reason: 'error', message: { content: '' } }, fine)).toEqual({
        class: 'bad_response',
        badReason: 'error_inside',
        message: null,
      });
      expect(chat(...before, { ...fine, error: { code: 502, message: 'Provider returned error' } })).toEqual({
        class: 'server_error',
        badReason: 'error_inside',
        message: 'Provider returned error',
      });
      expect(chat(...before, { error: 'gone' }, { error: 'later' }).message).toBe('gone');
      for (const odd of [null, 'x', 1, [], true]) expect(chat(...before, odd).badReason).toBe('no_response');
    }
    expect(judge('{"choices":[{"finish_reason":"\\u0065rror"}]}')).toBe('error_inside');
    expect(judge('{"choices":[{"error":1,"error":null,"finish_reason":"error","finish_reason":"stop"}]}')).toBeNull();
    expect(judge('{"choices":[{"error":1}],"choices":[{"finish_reason":"stop"}]}')).toBeNull();
    expect(judge('{"choices":[["error",{"error":1}]]}')).toBe('no_response');
    expect(judge('{"choices":[],"other":[{"error":1}]}')).toBeNull();
  });

  test.each(['failed', 'cancelled', 'queued', 'in_progress'])('of Responses with the status %s is none', (status) => {
    const call = { adapter: 'openai_responses' } as const;
    const response = { object: 'response', status, error: null, output: [{ type: 'message' }] };
    expect(judged(response, call)).toEqual({ class: 'bad_response', badReason: 'no_response', message: null });
    const error = { code: 'server_error', message: 'The model failed.' };
    expect(judged({ ...response, error }, call)).toEqual({
      class: 'server_error',
      badReason: 'error_inside',
      message: 'The model failed.',
    });
    for (const good of ['completed', 'incomplete', undefined, null]) {
      expect(judged({ ...response, status: good }, call).badReason).toBeNull();
    }
    // The status of an element, or of another API, is not that of the response.
    expect(judged({ output: [{ status }] }, call).badReason).toBeNull();
    expect(judged({ status, choices: [] }, { adapter: 'openai' }).badReason).toBeNull();
  });

  test('of embeddings has a vector for each input', () => {
    const vectors = (inputs: number | undefined, ...embeddings: unknown[]) =>
      judged(
        { object: 'list', data: embeddings.map((embedding) => ({ object: 'embedding', embedding })) },
        {
          adapter: 'openai_embeddings',
          ...(inputs === undefined ? {} : { inputs }),
        },
      ).badReason;
    expect(vectors(undefined, [0.1])).toBeNull();
    expect(vectors(2, [0.1], [0.2])).toBeNull();
    expect(vectors(1, [0.1], [0.2])).toBeNull();
    expect(vectors(1, 'AAAAAA==')).toBeNull();
    expect(vectors(0)).toBeNull();
    expect(vectors(undefined)).toBe('no_response');
    expect(vectors(2, [0.1])).toBe('no_response');
    for (const empty of [[], '', null, undefined, 1, {}]) {
      expect(vectors(2, [0.1], empty)).toBe('no_response');
      expect(vectors(2, empty, [0.1])).toBe('no_response');
    }
    expect(judge('{"data":[{"embedding":[ \n ]}]}', 'openai_embeddings')).toBe('no_response');
    expect(judge('{"data":[[1]]}', 'openai_embeddings')).toBe('no_response');
  });

  test.each([
    [{ code: 429 }, 'rate_limit_short'],
    [{ code: '429' }, 'rate_limit_short'],
    [{ code: 'rate_limit_exceeded' }, 'rate_limit_short'],
    [{ type: 'rate_limit_error' }, 'rate_limit_short'],
    [{ code: null, status: 'RESOURCE_EXHAUSTED' }, 'rate_limit_short'],
    [{ code: 500 }, 'server_error'],
    [{ code: 529 }, 'server_error'],
    [{ type: 'overloaded_error' }, 'server_error'],
    [{ code: 503, status: 'UNAVAILABLE' }, 'server_error'],
    [{ code: 408 }, 'transient'],
    [{ code: 409 }, 'transient'],
    [{ code: 402 }, 'account'],
    [{ code: 'insufficient_quota' }, 'account'],
    [{ code: 400, type: 'server_error' }, 'bad_response'],
    [{ code: 401 }, 'bad_response'],
    [{ code: 403 }, 'bad_response'],
    [{ code: 404 }, 'bad_response'],
    [{ code: 'content_filter' }, 'bad_response'],
    [{ code: 1 }, 'bad_response'],
    [{ code: {} }, 'bad_response'],
    [{}, 'bad_response'],
    [[], 'bad_response'],
    [false, 'bad_response'],
    ['server_error', 'bad_response'],
  ])('with the error %j has the class %s', (error, expected) => {
    for (const adapter of ADAPTERS) {
      expect(judged({ error }, { adapter })).toMatchObject({ class: expected, badReason: 'error_inside' });
    }
  });

  test('tells what its error says, whatever the form', () => {
    const message = (error: unknown) => judged({ error }, { adapter: 'openai' }).message;
    expect(message({ message: 'slow\n"down"' })).toBe('slow\n"down"');
    expect(message('slow down')).toBe('slow down');
    for (const none of [{ message: '' }, { message: null }, { message: { a: 1 } }, {}, '', 7]) {
      expect(message(none)).toBeNull();
    }
    expect(message({ message: 'x'.repeat(100_000) })).toBe('x'.repeat(1024));
    expect(judged(`{${pad},"error":{"message":"a","message":"b"}}`, { adapter: 'openai' }).message).toBe('b');
  });

  test.each(['', ' ', '<html>', '{', '{"a":1}}', '\uFEFF{}', "{'a':1}", '{"a":NaN}'])('%o is not JSON', (text) => {
    expect(judge(text)).toBe('not_json');
  });

  test.each(['null', '[]', '"{}"', '1', 'true'])('%s is no response', (text) => {
    expect(judge(text)).toBe('no_response');
  });

  test('that is not UTF-8 is not JSON, at any size', () => {
    expect(judge(Buffer.from('{"choices":[],"a":"\xe9"}', 'latin1'))).toBe('not_json');
    expect(judge(Buffer.from(`{"choices":[],${pad},"a":"\xe9"}`, 'latin1'))).toBe('not_json');
  });

  test('that is large is not built: only the members that count are', () => {
    expect(judge(`[${pad.slice(6)}]`)).toBe('no_response');
    expect(judge(`{${pad}`)).toBe('not_json');
    const body = Buffer.from(`{${pad},"choices":[{"x":1,"finish_reason":"stop"}],"usage":{"total_tokens":1}}`);
    expect(atOnce(judgeLargeBody({ adapter: 'openai' }, body))).toEqual({
      class: 'success',
      badReason: null,
      message: null,
      parsed: { choices: [{ finish_reason: 'stop' }], usage: { total_tokens: 1 } },
    });
  });

  test('with inherited names as keys is judged by its own members', () => {
    expect(judge('{"choices":[],"__proto__":{"object":"error"}}')).toBeNull();
    expect(judge('{"error":1,"__proto__":{"choices":[]}}')).toBe('error_inside');
    expect(judge('{"choices":[{"__proto__":{"error":1}}]}')).toBeNull();
  });

  test('of random JSON is judged the same in steps', () => {
    const json = fc.jsonValue({ maxDepth: 2 });
    const error = fc.oneof(json, fc.record({ message: json, code: fc.oneof(fc.constantFrom(429, 500, '503'), json) }));
    const element = fc.oneof(
      json,
      fc.record(
        { error, finish_reason: fc.constantFrom('stop', 'error', null), embedding: json },
        { requiredKeys: [] },
      ),
    );
    const list = fc.oneof(json, fc.array(element));
    const status = fc.constantFrom('failed', 'completed', null);
    const answer = fc.record(
      {
        error,
        status,
        object: fc.constantFrom('error', 'list'),
        message: json,
        choices: list,
        output: list,
        content: list,
        data: list,
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(fc.constantFrom(...ADAPTERS), answer, fc.nat(3), fc.boolean(), (adapter, given, inputs, spaced) => {
        judged(JSON.stringify(given, null, spaced ? 2 : 0), { adapter, inputs });
      }),
      { numRuns: 1000 },
    );
  });
});

describe('the message of an error inside a 2xx', () => {
  const KEY = 'sk-host-0123456789abcdef';

  test('is shown without control characters, and cut to 128', () => {
    expect(shownMessage('Provider returned error', [KEY, null])).toBe('Provider returned error');
    expect(shownMessage(' a\u0000\nb ', [])).toBe('a\\u0000\\u000ab');
    expect(shownMessage('y'.repeat(500), [])).toBe('y'.repeat(128));
    for (const none of [null, '', '  ']) expect(shownMessage(none, [])).toBeNull();
  });

  test('that repeats a key of the host, or its beginning, is not shown', () => {
    expect(shownMessage(`bad key ${KEY}`, [null, KEY])).toBeNull();
    expect(shownMessage(`bad key ${KEY.slice(0, 12)}`, [KEY])).toBeNull();
    expect(shownMessage('bad key short', ['short'])).toBe('bad key short');
  });

  test.each([
    ['Incorrect API key provided: sk-proj-Ab3*****xyz9.', 'Incorrect API key provided: [...]'],
    ['no such key AIzaSyD-1234567890abcdef', 'no such key [...]'],
    ['got Authorization: Bearer abc.def-0123', 'got Authorization: Bearer [...]'],
    ['cannot reach https://me:pass@host/x', 'cannot reach https://[...]@host/x'],
    ['token eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJyIn0.c2ln', 'token [...]'],
    [`secret ${'aB3'.repeat(14)}`, 'secret [...]'],
    ['model accounts/fireworks/models/llama-v3p1-405b-instruct not found', null],
    ['request 01a22e70-29a0-783d-8a16-72a2ebb25b17 failed: task-skipping', null],
  ])('hides what looks like a secret: %s', (message, expected) => {
    expect(shownMessage(message, [])).toBe(expected ?? message);
  });
});
