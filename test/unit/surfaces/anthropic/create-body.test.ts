import { Buffer } from 'node:buffer';
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ApiError } from '../../../../lib/base/errors.ts';
import { atOnce } from '../../../../lib/base/turns.ts';
import { MAX_MEMBERS } from '../../../../lib/json/members.ts';
import {
  CREATE_LIMITS,
  type CreateBody,
  type CreateLimits,
  createBodyReader,
} from '../../../../lib/surfaces/anthropic/create-body.ts';
import { messageBatchId, parseMessageBatchId } from '../../../../lib/surfaces/anthropic/message-batch.ts';

const MANY = '"x":1,'.repeat(MAX_MEMBERS);

type Requests = Extract<CreateBody, { kind: 'requests' }>;

function read(body: string | Buffer, size = 1 << 20, limits: Partial<CreateLimits> = {}): CreateBody {
  const bytes = Buffer.from(body);
  const reader = createBodyReader({ ...CREATE_LIMITS, ...limits });
  for (let at = 0; at < bytes.length; at += size) atOnce(reader.push(bytes.subarray(at, at + size)));
  return reader.end();
}

function refusal(body: string | Buffer, size?: number, limits?: Partial<CreateLimits>): string {
  try {
    read(body, size, limits);
  } catch (error) {
    if (error instanceof ApiError) return `${error.status} ${error.message}`;
    throw error;
  }
  throw new Error('was not refused');
}

const one = (id: unknown, params: unknown = {}) => ({ custom_id: id, params });
const create = (...requests: unknown[]) => JSON.stringify({ requests });
const PATTERN = "String should match pattern '^[a-zA-Z0-9_-]{1,64}$'";

describe('a create', () => {
  test('gives the bytes of each params, with their checksums and custom ids, however it is cut', () => {
    const params = ['{"b":1, "a":9007199254740993,"a":"\\u0000"}', '{ "deep":[{"requests":[{}]}] }', '{}'];
    const body = Buffer.from(
      `\ufeff{"x":[1], "requests" : [ {"params":${params[0]},"custom_id":"a-1"} ,\n{"custom_id":"gone","custom_id":` +
        `"\\u0062_2","params":7,"params":${params[1]},"y":null},{"custom_id":"${'c'.repeat(64)}","params":${params[2]}}]}`,
    );
    for (const size of [1, 7, 64, body.length]) {
      const { items, crcs, customIds, sha256 } = read(body, size) as Requests;
      const found = Array.from({ length: items.count }, (_, i) => {
        const start = items.offsets[i]!;
        return body.toString('utf8', start, start + items.lengths[i]!);
      });
      expect(found).toEqual(params);
      expect([...crcs]).toEqual(params.map((text) => crc32(text)));
      expect([...customIds]).toEqual(['a-1', 'b_2', 'c'.repeat(64)]);
      expect(sha256).toEqual(createHash('sha256').update(body).digest());
    }
  });

  test('gives the checksums of large params, which are made in steps', () => {
    const large = [`{"x":"${'y'.repeat(200_000)}"}`, '{}', `{"x":"${'z'.repeat(70_000)}"}`];
    const body = `{"requests":[${large.map((text, i) => `{"custom_id":"${i}","params":${text}}`).join(',')}]}`;
    for (const size of [1000, 65_536, 1 << 20]) {
      expect([...(read(body, size) as Requests).crcs]).toEqual(large.map((text) => crc32(text)));
    }
  });

  test.each([
    ['a body with too many members', `{${MANY}"requests":[]}`, '400 request body has more than 100000 members'],
    [
      'a request with too many members',
      `{"requests":[{${MANY}"custom_id":"a","params":{}}]}`,
      '400 requests.0: Object should have at most 100000 members',
    ],
    ['an empty custom_id', create(one('')), `400 requests.0.custom_id: ${PATTERN}`],
    ['a custom_id of 65 characters', create(one('a'), one('b'.repeat(65))), `400 requests.1.custom_id: ${PATTERN}`],
    ['a custom_id with a space', create(one('a b')), `400 requests.0.custom_id: ${PATTERN}`],
    ['a custom_id with a letter that is none', create(one('é')), `400 requests.0.custom_id: ${PATTERN}`],
    ['a custom_id with a line end', create(one('a\n')), `400 requests.0.custom_id: ${PATTERN}`],
    ['a custom_id of 64 KiB', create(one('x'.repeat(1 << 16))), `400 requests.0.custom_id: ${PATTERN}`],
    ['a custom_id that is a number', create(one(7)), '400 requests.0.custom_id: Input should be a valid string'],
    ['a custom_id that is null', create(one(null)), '400 requests.0.custom_id: Input should be a valid string'],
    ['no custom_id', create({ params: {} }), '400 requests.0.custom_id: Field required'],
    [
      'a custom_id twice',
      create(one('a'), one('b'), one('a')),
      "400 requests.2.custom_id: 'a' is that of requests.0.custom_id, too",
    ],
    [
      'a custom_id twice, once escaped',
      '{"requests":[{"custom_id":"a","params":{}},{"custom_id":"\\u0061","params":{}}]}',
      "400 requests.1.custom_id: 'a' is that of requests.0.custom_id, too",
    ],
    ['no params', create(one('a'), { custom_id: 'b' }), '400 requests.1.params: Field required'],
    ['params that are a string', create(one('a', '{}')), '400 requests.0.params: Input should be an object'],
    ['params that are null', create(one('a', null)), '400 requests.0.params: Input should be an object'],
    ['params that are an array', create(one('a', [{}])), '400 requests.0.params: Input should be an object'],
    ['a request that is null', create(one('a'), null), '400 requests.1: Input should be an object'],
    ['a request that is an array', create([]), '400 requests.0: Input should be an object'],
    ['no requests in the array', create(), '400 requests: should have at least 1 request, not 0'],
    ['no requests', '{}', '400 requests: Field required'],
    ['requests that are an object', '{"requests":{}}', '400 requests: Input should be a valid array'],
    ['requests that are null', '{"requests":null}', '400 requests: Input should be a valid array'],
    ['requests twice', '{"requests":[],"requests":[]}', '400 requests: given twice'],
    [
      'an upload beside requests',
      `{"upload_id":"u","requests":[${JSON.stringify(one('a'))}]}`,
      '400 upload_id: cannot stand beside requests',
    ],
    ['an upload that is a number', '{"upload_id":1}', '400 upload_id: Input should be a valid string'],
    ['an array', '[]', '400 request body must be a JSON object'],
    ['no body', '', '400 request body is not valid JSON: unexpected end at offset 0'],
    [
      'half a body',
      '{"requests":[{"custom_id":"a","params":{',
      '400 request body is not valid JSON: unexpected end at offset 40',
    ],
    [
      'a fault in params',
      '{"requests":[{"custom_id":"a","params":{x}}]}',
      '400 request body is not valid JSON: unexpected byte at offset 40',
    ],
    ['bytes that are no UTF-8', Buffer.from('{"requests":["\xff"]}', 'latin1'), '400 request body is not valid UTF-8'],
  ])('is refused for %s', (_, body, message) => {
    for (const size of [1, 9, 1 << 20]) expect(refusal(body, size)).toBe(message);
  });

  test('is refused for the first violation of several', () => {
    expect(refusal(create(one('a'), one('b', 1), one('')))).toBe('400 requests.1.params: Input should be an object');
  });

  test('is refused with 413 for more requests or bytes than the limit, and says how many there were', () => {
    const ids = Array.from({ length: 5 }, (_, i) => one(`r${i}`));
    expect(read(create(...ids), 10, { maxRequests: 5 }).kind).toBe('requests');
    expect(refusal(create(...ids, one('r0')), 10, { maxRequests: 5 })).toBe(
      '413 requests: too many requests: 6 sent, the limit is 5',
    );
    const body = create(...ids);
    expect(read(body, 10, { maxBytes: body.length }).kind).toBe('requests');
    expect(refusal(body, 10, { maxBytes: body.length - 1 })).toBe(
      `413 request body too large: more than ${body.length - 1} bytes sent, the limit is ${body.length - 1} bytes`,
    );
  });

  test('is refused for a request that is too long, by its number', () => {
    const body = create(one('a'), one('b', { x: 'y'.repeat(100) }));
    for (const size of [10, 1000]) {
      expect(refusal(body, size, { maxRequestBytes: 100 })).toBe(
        '400 requests.1: longer than 100 bytes, the limit of one request',
      );
    }
  });

  test('may name an upload; one that is null is none', () => {
    expect(read('{"upload_id":"u\\u002d1"}', 3)).toMatchObject({ kind: 'upload', uploadId: 'u-1' });
    expect(read(`{"upload_id":null,"requests":[${JSON.stringify(one('a'))}]}`).kind).toBe('requests');
  });

  test('is taken or refused as its parsed value says, over random ones', () => {
    const id = fc.oneof({ weight: 5, arbitrary: fc.stringMatching(/^[a-c_-]{1,3}$/) }, fc.jsonValue());
    const params = fc.oneof({ weight: 5, arbitrary: fc.dictionary(fc.string(), fc.jsonValue()) }, fc.jsonValue());
    const request = fc.oneof(
      { weight: 8, arbitrary: fc.record({ custom_id: id, params }) },
      { weight: 1, arbitrary: fc.record({ custom_id: id, params }, { requiredKeys: [] }) },
      { weight: 1, arbitrary: fc.jsonValue() },
    );
    let taken = 0;
    let refused = 0;
    fc.assert(
      fc.property(fc.array(request, { maxLength: 6 }), fc.integer({ min: 1, max: 50 }), (requests, size) => {
        const body = Buffer.from(JSON.stringify({ requests }));
        const expected = reference(JSON.parse(body.toString()).requests);
        if (expected !== null) {
          refused++;
          expect(refusal(body, size).startsWith(`400 ${expected}: `)).toBe(true);
          return;
        }
        taken++;
        const { items, customIds } = read(body, size) as Requests;
        const found = [...customIds].map((custom_id, i) => {
          const start = items.offsets[i]!;
          return { custom_id, params: JSON.parse(body.toString('utf8', start, start + items.lengths[i]!)) };
        });
        expect(found).toEqual(JSON.parse(body.toString()).requests);
      }),
      { numRuns: 600 },
    );
    expect(Math.min(taken, refused)).toBeGreaterThan(100);
  });
});

/** Where the first violation is, in the plainest form of the rule. */
function reference(requests: unknown[]): string | null {
  if (requests.length === 0) return 'requests';
  const isObject = (value: unknown) => typeof value === 'object' && value !== null && !Array.isArray(value);
  const seen = new Set<string>();
  for (const [n, request] of requests.entries()) {
    if (!isObject(request)) return `requests.${n}`;
    const { custom_id: id, params } = request as { custom_id?: unknown; params?: unknown };
    if (typeof id !== 'string' || !/^[a-zA-Z0-9_-]{1,64}$/.test(id)) return `requests.${n}.custom_id`;
    if (!isObject(params)) return `requests.${n}.params`;
    if (seen.has(id)) return `requests.${n}.custom_id`;
    seen.add(id);
  }
  return null;
}

describe('ids of message batches', () => {
  test('are the UUID and nothing else', () => {
    const uuid = '019a3c5e-7b11-7d2f-9c3a-0123456789ab';
    expect(messageBatchId(uuid)).toBe('msgbatch_01019a3c5e7b117d2f9c3a0123456789ab');
    expect(parseMessageBatchId(messageBatchId(uuid))).toBe(uuid);
    const id = messageBatchId(uuid);
    for (const other of ['', uuid, id.slice(0, -1), `${id}0`, id.toUpperCase(), id.replace('01', '02'), `${id}\n`]) {
      expect(parseMessageBatchId(other)).toBeNull();
    }
  });
});
