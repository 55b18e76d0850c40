import { Buffer } from 'node:buffer';
import { once } from 'node:events';
import { connect } from 'node:net';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { claimItems } from '../../../../lib/worker/claim.sql.ts';
import { plaintextOf } from '../../../support/auth-catalog.ts';
import { makeWorker } from '../../../support/batches.ts';
import { createMessageBatchesApi, type MessageBatchesApi } from '../../../support/message-batches.ts';
import { type Answer, WAYS } from '../../../support/native-api.ts';

const PATH = '/v1/messages/batches';
const PARAMS = ['{"model":"m","b":1, "a":9007199254740993}', '{ "model" : "\\u0000" }'];
const BODY = Buffer.from(
  `{"requests": [ {"custom_id":"one","params":${PARAMS[0]}}, {"params":${PARAMS[1]},"custom_id":"tw\\u006f"} ]}`,
);
const KEYS = [
  ...['id', 'type', 'processing_status', 'request_counts', 'created_at', 'expires_at', 'ended_at'],
  ...['cancel_initiated_at', 'archived_at', 'results_url'],
];

let api: MessageBatchesApi;
beforeAll(async () => {
  api = await createMessageBatchesApi();
});
afterAll(() => api.close());

const left = async () => [await api.objects('input'), await api.objects('custom_ids'), await batches()];
const batches = () => api.native.sql('select id from batches order by id');

describe.each(WAYS)('over %s', (way) => {
  const create = (body: string | Buffer, headers: Record<string, string> = {}, as: string | null = 'ann') =>
    api.call(way, { method: 'POST', path: PATH, body, headers, as });
  const refused = (answer: Answer) => [
    answer.status,
    answer.json.type,
    answer.json.error.type,
    answer.json.error.message,
  ];

  test('answers the object, every key of it', async () => {
    const { status, json, headers } = await create(BODY);
    expect(status).toBe(200);
    expect(Object.keys(json)).toEqual(KEYS);
    expect(json).toMatchObject({
      type: 'message_batch',
      processing_status: 'in_progress',
      request_counts: { processing: 2, succeeded: 0, errored: 0, canceled: 0, expired: 0 },
      ended_at: null,
      cancel_initiated_at: null,
      archived_at: null,
      results_url: null,
    });
    expect(json.id).toMatch(/^msgbatch_01[0-9a-f]{32}$/);
    expect(Date.parse(json.expires_at) - Date.parse(json.created_at)).toBe(86_400_000);
    expect(headers.get('request-id')).toBeTruthy();
    expect((await api.call(way, { path: `${PATH}/${json.id}` })).json).toEqual(json);
  });

  test('keeps the bytes as they were sent, with the span and checksum of each params', async () => {
    const { json } = await create(BODY, { 'anthropic-version': '2023-06-01', 'anthropic-beta': 'a-1, b-2' });
    const [row] = await api.native.sql('select * from batches where id = $1::uuid', [api.uuidOf(json.id)]);
    expect(row).toMatchObject({
      ...{ surface: 'anthropic', shape: 'anthropic', anthropic_version: '2023-06-01', anthropic_beta: 'a-1, b-2' },
      ...{ on_limit: 'wait', max_attempts: 32_767, policy: 'p', total_items: 2 },
    });
    expect((row!.expires_at as Date).getTime() - (row!.created_at as Date).getTime()).toBeGreaterThan(86_399_000);
    const input = { kind: 'input', id: String(row!.input_id) } as const;
    expect(await api.payloads.read(input, 0, await api.payloads.size(input))).toEqual(BODY);
    const items = await api.native.sql('select * from batch_items where batch_id = $1::uuid order by idx', [row!.id]);
    for (const [i, item] of items.entries()) {
      const bytes = await api.payloads.read(input, Number(item.input_offset), Number(item.input_length));
      expect([bytes.toString(), item.input_crc]).toEqual([PARAMS[i], crc32(bytes)]);
    }
    const ids = { kind: 'custom_ids', id: String(row!.custom_ids_id) } as const;
    expect((await api.payloads.read(ids, 0, await api.payloads.size(ids))).toString()).toBe('"one"\n"two"\n');
  });

  test('takes x-api-key and Bearer, either version, and ?beta=true', async () => {
    const body = BODY;
    for (const [name, value] of [
      ['x-api-key', plaintextOf('ann')],
      ['authorization', `Bearer ${plaintextOf('ann')}`],
    ] as const) {
      const call = { method: 'POST', path: `${PATH}?beta=true`, body, as: null };
      const answer = await api.call(way, { ...call, headers: { [name]: value, 'anthropic-version': '2026-10-21' } });
      expect(answer.status).toBe(200);
    }
  });

  test('makes items that a worker can claim', async () => {
    const { json } = await create(BODY);
    const db = api.native.database.db;
    const { rows } = await claimItems(db, await makeWorker(db), [api.uuidOf(json.id)], [2], [0]);
    expect(rows.map(({ idx }) => idx)).toEqual([0, 1]);
    expect(api.native.wakes.at(-1)).toEqual({ kind: 'work' });
  });

  test.each([
    [
      'a custom_id that is taken',
      '{"requests":[{"custom_id":"a","params":{}},{"custom_id":"a","params":{}}]}',
      'requests.1.custom_id: ',
    ],
    [
      'a last params that is none',
      '{"requests":[{"custom_id":"a","params":{}},{"custom_id":"b","params":1}]}',
      'requests.1.params: ',
    ],
    ['no requests', '{"requests":[]}', 'requests: '],
    ['a fault at the very end', '{"requests":[{"custom_id":"a","params":{}}]}}', 'request body is not valid JSON'],
    ['no body', '', 'request body is not valid JSON'],
  ])('refuses %s as a whole and leaves nothing behind', async (_, body, message) => {
    const before = await left();
    const answer = await create(body);
    expect(refused(answer).slice(0, 3)).toEqual([400, 'error', 'invalid_request_error']);
    expect(answer.json.error.message.startsWith(message)).toBe(true);
    expect(answer.json.request_id).toBe(answer.headers.get('request-id'));
    expect(await left()).toEqual(before);
  });

  test('refuses a body that came compressed, a stranger, and a policy that is off', async () => {
    const before = await left();
    expect(refused(await create(BODY, { 'content-encoding': 'gzip' })).slice(0, 3)).toEqual([
      ...[415, 'error', 'invalid_request_error'],
    ]);
    expect(refused(await create(BODY, {}, null)).slice(0, 3)).toEqual([401, 'error', 'authentication_error']);
    expect(refused(await create(BODY, {}, 'gone')).slice(0, 3)).toEqual([401, 'error', 'authentication_error']);
    expect(refused(await create(BODY, {}, 'off')).slice(0, 3)).toEqual([403, 'error', 'permission_error']);
    expect(await left()).toEqual(before);
  });

  test('answers a repeated Idempotency-Key with the first batch as it is now, and stores nothing again', async () => {
    const headers = { 'idempotency-key': `k-${way}` };
    const first = await create(BODY, headers);
    expect(first.headers.get('idempotency-replayed')).toBeNull();
    const before = await left();
    const again = await Promise.all([create(BODY, headers), create(BODY, headers)]);
    for (const answer of again) {
      expect([answer.status, answer.headers.get('idempotency-replayed'), answer.json]).toEqual([
        200,
        'true',
        first.json,
      ]);
    }
    const other = await create(Buffer.concat([BODY, Buffer.from(' ')]), headers);
    expect(refused(other).slice(0, 3)).toEqual([409, 'error', 'conflict_error']);
    expect(await left()).toEqual(before);
    expect((await create(BODY, headers, 'bob')).json.id).not.toBe(first.json.id);
  });

  test('makes one batch of two creates of one key at once', async () => {
    const headers = { 'idempotency-key': `both-${way}` };
    const answers = await Promise.all(Array.from({ length: 5 }, () => create(BODY, headers)));
    expect(new Set(answers.map(({ json }) => json.id)).size).toBe(1);
    expect(answers.filter((answer) => answer.headers.get('idempotency-replayed') === null)).toHaveLength(1);
  });

  describe('with an upload', () => {
    const upload = async (bytes: Buffer, as = 'ann'): Promise<string> => {
      const body = JSON.stringify({ bytes: bytes.length });
      const { json } = await api.native.call('node', { method: 'POST', path: '/v1/uploads', body, as });
      const put = await fetch(json.upload_url, { method: 'PUT', body: new Uint8Array(bytes) });
      expect(put.status).toBe(200);
      return json.upload_id;
    };
    const use = (id: string, headers: Record<string, string> = {}, as = 'ann') =>
      create(JSON.stringify({ upload_id: id }), headers, as);

    test('makes a batch of it, under an object of its own, and takes the upload away', async () => {
      const id = await upload(BODY);
      const { status, json } = await use(id);
      expect([status, json.request_counts.processing]).toEqual([200, 2]);
      const [row] = await api.native.sql('select input_id from batches where id = $1::uuid', [api.uuidOf(json.id)]);
      expect(row!.input_id).not.toBe(id);
      expect(await api.payloads.read({ kind: 'input', id: String(row!.input_id) }, 0, BODY.length)).toEqual(BODY);
      expect(await api.objects('upload')).not.toContain(id);
      expect(refused(await use(id)).slice(0, 3)).toEqual([409, 'error', 'conflict_error']);
    });

    test('answers it again under its Idempotency-Key', async () => {
      const id = await upload(BODY);
      const headers = { 'idempotency-key': `up-${way}` };
      const first = await use(id, headers);
      const again = await use(id, headers);
      expect([again.status, again.headers.get('idempotency-replayed'), again.json]).toEqual([200, 'true', first.json]);
      expect((await use(await upload(BODY), headers)).status).toBe(409);
    });

    test('refuses what it holds as it would a body, and leaves the upload for another try', async () => {
      const bad = await upload(Buffer.from('{"requests":[{"custom_id":"","params":{}}]}'));
      const before = await left();
      expect(refused(await use(bad))[3]).toMatch(/^requests\.0\.custom_id: /);
      expect(await left()).toEqual(before);
      expect(await api.objects('upload')).toContain(bad);
      expect(refused(await use(await upload(Buffer.from('{"upload_id":"x"}'))))[3]).toMatch(/^upload_id: /);
    });

    test("is told that another's, an unknown and an absent one are not there", async () => {
      const id = await upload(BODY);
      expect((await use(id, {}, 'bob')).status).toBe(404);
      expect((await use('no-id')).status).toBe(404);
      const body = JSON.stringify({ bytes: 10 });
      const { json } = await api.native.call('node', { method: 'POST', path: '/v1/uploads', body });
      expect(refused(await use(json.upload_id)).slice(0, 3)).toEqual([409, 'error', 'conflict_error']);
      expect((await use(id)).status).toBe(200);
    });
  });
});

describe('the owner limit', () => {
  test('refuses with 429 what would go over it, and leaves nothing behind', async () => {
    const limited = await createMessageBatchesApi({ app: { maxPendingItemsPerOwner: 3 } });
    const create = () => limited.call('node', { method: 'POST', path: PATH, body: BODY });
    expect((await create()).status).toBe(200);
    const { status, json } = await create();
    expect([status, json.error.type]).toEqual([429, 'rate_limit_error']);
    expect([await limited.objects('input'), await limited.objects('custom_ids')].map((ids) => ids.length)).toEqual([
      1, 1,
    ]);
    await limited.close();
  });
});

describe('over a socket', () => {
  const open = (head: string) => {
    const socket = connect(Number(new URL(api.url).port), '127.0.0.1');
    socket.write(
      `POST ${PATH} HTTP/1.1\r\nhost: x\r\nx-api-key: ${plaintextOf('ann')}\r\n${head}content-type: application/json\r\n\r\n`,
    );
    return socket;
  };

  test('a body over 256 MiB is refused by its announced length, with 413', async () => {
    const socket = open('content-length: 268435457\r\n');
    const [answer] = (await once(socket, 'data')) as [Buffer];
    expect(answer.toString()).toMatch(/^HTTP\/1\.1 413 /);
    expect(answer.toString()).toContain('268435457 bytes sent, the limit is 268435456 bytes');
    expect(answer.toString()).toContain('"type":"request_too_large"');
    socket.destroy();
  });

  test('a client that goes away in mid-body leaves nothing behind', async () => {
    const before = await left();
    const socket = open('expect: 100-continue\r\ncontent-length: 1000\r\n');
    await once(socket, 'data'); // its body is being read
    socket.write(BODY, () => socket.destroy());
    await vi.waitFor(() => expect(api.seen.at(-1)).toMatchObject({ method: 'POST', status: 499 }));
    expect(await left()).toEqual(before);
  });

  test('a client that waits for 100 Continue is asked for its body, and refused by its first violation', async () => {
    const socket = open('expect: 100-continue\r\ntransfer-encoding: chunked\r\n');
    const [first] = (await once(socket, 'data')) as [Buffer];
    expect(first.toString()).toMatch(/^HTTP\/1\.1 100 /);
    const part = '{"requests":[{"custom_id":"","params":{}},';
    socket.write(`${part.length.toString(16)}\r\n${part}\r\n`);
    const [answer] = (await once(socket, 'data')) as [Buffer];
    expect(answer.toString()).toMatch(/^HTTP\/1\.1 400 /);
    expect(answer.toString()).toContain('requests.0.custom_id: ');
    socket.destroy();
  });
});
