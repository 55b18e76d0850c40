import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { purgeUploads } from '../../../lib/batch/submit/uploads.sql.ts';
import { createS3Store } from '../../../lib/payloads/s3-store.ts';
import { deleteOrphans } from '../../../lib/worker/sweep/orphans.ts';
import { createBucket, startFaux, TEST_CLIENT } from '../../support/aws.ts';
import { type Answer, createNativeApi, type NativeApi, WAYS } from '../../support/native-api.ts';

const LIMIT = 12 * 1024 * 1024;
/** Other surfaces take more than a native submit does. */
const UPLOAD_LIMIT = 2 * LIMIT;
const HOUR = 3_600_000;
const BODY = Buffer.from('\ufeff {"shape":"openai", "requests" : [ {"b":1, "a":2} , 1e400 ], "max_attempts":2} ');

async function openFiles(): Promise<{ api: NativeApi; close(): Promise<void> }> {
  const api = await createNativeApi(() => ({ maxRequestBytes: LIMIT, maxUploadBytes: UPLOAD_LIMIT }));
  return { api, close: () => api.close() };
}

async function openS3(): Promise<{ api: NativeApi; close(): Promise<void> }> {
  const server = await startFaux();
  await createBucket(server.endpoint, 'payloads');
  const payloads = createS3Store({ bucket: 'payloads', prefix: 'p', endpoint: server.endpoint, client: TEST_CLIENT });
  const api = await createNativeApi(() => ({ maxRequestBytes: LIMIT, maxUploadBytes: UPLOAD_LIMIT, payloads }));
  return {
    api: { ...api, payloads },
    async close() {
      await api.close();
      await payloads.close();
      await server.stop();
    },
  };
}

describe.each([
  ['files', openFiles],
  ['S3', openS3],
] as const)('uploads into %s', (store, open) => {
  let api: NativeApi;
  let close: () => Promise<void>;
  beforeAll(async () => {
    ({ api, close } = await open());
  });
  afterAll(() => close?.());

  const objects = async (kind: 'input' | 'upload'): Promise<string[]> => {
    const ids: string[] = [];
    for await (const { id } of api.payloads.list(kind, Date.now() + HOUR)) ids.push(id);
    return ids;
  };
  const put = (url: string, body: Buffer) => fetch(url, { method: 'PUT', body: new Uint8Array(body) });

  describe.each(WAYS)('over %s', (way) => {
    const announce = (body: unknown, as = 'ann') =>
      api.call(way, { method: 'POST', path: '/v1/uploads', body: JSON.stringify(body), as });
    /** The handlers' own event names no host that listens: then the one of the running server is meant. */
    const urlOf = ({ json }: Answer): string => json.upload_url.replace('http://d/', `${api.url}/`);
    const uploaded = async (body = BODY): Promise<string> => {
      const made = await announce({ bytes: body.length });
      expect((await put(urlOf(made), body)).status).toBe(200);
      return made.json.upload_id;
    };
    const submit = (body: unknown, headers: Record<string, string> = {}, as = 'ann') =>
      api.call(way, { method: 'POST', path: '/v1/batches', body: JSON.stringify(body), headers, as });
    const expectError = (answer: Answer, status: number, code: string) =>
      expect([answer.status, answer.json.error?.code]).toEqual([status, code]);

    test('makes a batch of what was uploaded, byte for byte, and takes the upload away', async () => {
      const made = await announce({ bytes: BODY.length });
      expect([made.status, Object.keys(made.json)]).toEqual([201, ['upload_url', 'upload_id', 'expires_at']]);
      expect(Math.abs(Date.parse(made.json.expires_at) - Date.now() - HOUR)).toBeLessThan(60_000);
      const answer = await put(urlOf(made), BODY);
      expect([answer.status, await answer.text()]).toEqual([200, '']);
      expect(await objects('upload')).toContain(made.json.upload_id);

      const batch = await submit({ upload_id: made.json.upload_id });
      expect([batch.status, batch.json.total_items]).toEqual([202, 2]);
      const [row] = await api.sql('select shape, max_attempts, input_id from batches where id = $1', [batch.json.id]);
      expect(row).toMatchObject({ shape: 'openai', max_attempts: 2 });
      const input = { kind: 'input', id: row!.input_id as string } as const;
      expect(await api.payloads.read(input, 0, BODY.length)).toEqual(BODY);
      const items = await api.sql('select * from batch_items where batch_id = $1 order by idx', [batch.json.id]);
      const read = items.map((i) => api.payloads.read(input, i.input_offset as number, i.input_length as number));
      expect((await Promise.all(read)).map(String)).toEqual(['{"b":1, "a":2}', '1e400']);
      expect(await objects('upload')).not.toContain(made.json.upload_id);
    });

    test('lets the options of the submit win', async () => {
      const id = await uploaded();
      const { json } = await submit({ upload_id: id, shape: 'anthropic', max_attempts: null, on_limit: 'wait' });
      const [row] = await api.sql('select shape, max_attempts, on_limit from batches where id = $1', [json.id]);
      expect(row).toEqual({ shape: 'anthropic', max_attempts: 2, on_limit: 'wait' });
    });

    test('carries a body of more than 8 MiB', async () => {
      const item = `{"x":"${'é'.repeat(512 * 1024)}"}`;
      const body = Buffer.from(`{"shape":"openai","requests":[${Array(9).fill(item).join(',')}]}`);
      const { status, json } = await submit({ upload_id: await uploaded(body) });
      expect([status, json.total_items]).toEqual([202, 9]);
    });

    test('refuses a second use, one after the other and at once', async () => {
      const id = await uploaded();
      expect((await submit({ upload_id: id })).status).toBe(202);
      expectError(await submit({ upload_id: id }), 409, 'upload_used');

      const inputs = (await objects('input')).length;
      const other = await uploaded();
      const answers = await Promise.all(Array.from({ length: 6 }, () => submit({ upload_id: other })));
      expect(answers.map(({ status }) => status).sort()).toEqual([202, 409, 409, 409, 409, 409]);
      for (const one of answers.filter(({ status }) => status === 409)) expectError(one, 409, 'upload_used');
      const batches = await api.sql('select batch_id from uploads where id = $1', [other]);
      expect(batches).toEqual([{ batch_id: answers.find(({ status }) => status === 202)!.json.id }]);
      expect((await objects('input')).length).toBe(inputs + 1);
    });

    test('says that what was not put, or not all of it, has not arrived', async () => {
      const { json } = await announce({ bytes: BODY.length });
      expectError(await submit({ upload_id: json.upload_id }), 409, 'upload_incomplete');
      // A store that checks no lengths would accept this:
      await api.payloads.writeStream(
        { kind: 'upload', id: json.upload_id },
        (async function* () {
          yield BODY.subarray(1);
        })(),
      );
      expectError(await submit({ upload_id: json.upload_id }), 409, 'upload_incomplete');
    });

    test('does not use up an upload that makes no batch', async () => {
      const made = await announce({ bytes: 12 });
      await put(urlOf(made), Buffer.from('{"requests":'));
      expectError(await submit({ upload_id: made.json.upload_id, shape: 'openai' }), 400, 'invalid_json');
      const right = '{"requests":[1]}';
      const other = await announce({ bytes: right.length });
      await put(urlOf(other), Buffer.from(right));
      expectError(await submit({ upload_id: other.json.upload_id }), 400, 'missing_required_parameter');
      expect((await submit({ upload_id: other.json.upload_id, shape: 'openai' })).status).toBe(202);
    });

    test('knows no upload that expired, is of another owner, or never was', async () => {
      const id = await uploaded();
      expectError(await submit({ upload_id: id }, {}, 'bob'), 404, 'not_found');
      expectError(await submit({ upload_id: randomUUID() }), 404, 'not_found');
      expectError(await submit({ upload_id: "' or 1=1" }), 404, 'not_found');
      await api.sql("update uploads set expires_at = clock_timestamp() - interval '1 second' where id = $1", [id]);
      expectError(await submit({ upload_id: id }), 404, 'not_found');
    });

    test.each([
      [{ bytes: UPLOAD_LIMIT + 1 }, 'body_too_large'],
      [{ bytes: 0 }, 'invalid_value'],
      [{ bytes: 1.5 }, 'invalid_value'],
      [{ bytes: '7' }, 'invalid_value'],
      [{}, 'missing_required_parameter'],
      [[], 'invalid_value'],
    ])('refuses to announce %j', async (body, code) => {
      const answer = await announce(body);
      expectError(answer, 400, code);
      if (code === 'body_too_large') {
        expect(answer.json.error.message).toBe(
          `request body too large: ${UPLOAD_LIMIT + 1} bytes sent, the limit is ${UPLOAD_LIMIT} bytes`,
        );
      }
    });

    test('refuses a submit of an upload that is larger than a submit may be', async () => {
      const { status, json } = await announce({ bytes: LIMIT + 1 });
      expect(status).toBe(201);
      const answer = await submit({ upload_id: json.upload_id });
      expectError(answer, 400, 'body_too_large');
      expect(answer.json.error.message).toContain(`${LIMIT + 1} bytes sent, the limit is ${LIMIT} bytes`);
    });

    test.each([
      [{ upload_id: 7 }, 'upload_id'],
      [{ upload_id: uuidv7(), requests: [1] }, 'upload_id'],
      [{ upload_id: uuidv7(), input_file_id: 'x' }, 'input_file_id'],
    ])('refuses a submit of %j', async (body, param) => {
      const answer = await submit(body);
      expectError(answer, 400, 'invalid_value');
      expect(answer.json.error.param).toBe(param);
    });

    test('refuses an upload that names another one', async () => {
      const id = await uploaded(Buffer.from('{"upload_id":"x"}'));
      expectError(await submit({ upload_id: id }), 400, 'invalid_value');
    });

    test('gives the first answer again for the same Idempotency-Key, also once the upload is used up', async () => {
      const id = await uploaded();
      const key = { 'idempotency-key': randomUUID() };
      const answers = await Promise.all(Array.from({ length: 4 }, () => submit({ upload_id: id }, key)));
      answers.push(await submit({ upload_id: id }, key));
      expect(answers.map(({ status }) => status)).toEqual([202, 202, 202, 202, 202]);
      expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
      expect(answers.filter(({ headers }) => headers.get('idempotency-replayed') === 'true')).toHaveLength(4);
      expectError(await submit({ upload_id: id, max_attempts: 3 }, key), 409, 'idempotency_conflict');
      expectError(await submit({ upload_id: id }, { 'idempotency-key': randomUUID() }), 409, 'upload_used');
    });

    test('leaves what may be used to its owner, and the sweep takes the rest', async () => {
      const now = Date.now() + 25 * HOUR;
      const [open, expired, used] = [await uploaded(), await uploaded(), await uploaded()];
      expect((await submit({ upload_id: used })).status).toBe(202);
      await api.payloads.write({ kind: 'upload', id: used }, [BODY]); // its sender's URL still works on S3
      await api.sql("update uploads set expires_at = clock_timestamp() - interval '1 second' where id = $1", [expired]);
      await deleteOrphans(api.database.db, api.payloads, now);
      const left = await objects('upload');
      expect(left).toContain(open);
      expect(left).not.toContain(expired);
      expect(left).not.toContain(used);

      await api.sql("update uploads set created_at = created_at - interval '49 hours' where id = $1", [expired]);
      await purgeUploads(api.database.db);
      const rows = await api.sql('select id from uploads where id = any($1::uuid[])', [[open, expired]]);
      expect(rows).toEqual([{ id: open }]);
    });

    if (store === 'S3') {
      test('signs the length, and no checksum of a body that it does not have', async () => {
        const { json } = await announce({ bytes: 77 });
        const query = new URL(json.upload_url).searchParams;
        expect(query.get('X-Amz-SignedHeaders')).toBe('content-length;host');
        expect(query.get('X-Amz-Expires')).toBe('3600');
        expect([...query.keys()].filter((name) => name.includes('checksum'))).toEqual([]);
      });
    } else {
      test('answers PUT with 404 unless the URL is the signed one, before and after its time', async () => {
        const made = await announce({ bytes: BODY.length });
        const url = urlOf(made);
        const tampered = [
          url.replace(/signature=./, (text) => (text.endsWith('0') ? 'signature=1' : 'signature=0')),
          url.replace(/&signature=.*/, ''),
          url.replace(`bytes=${BODY.length}`, `bytes=${BODY.length + 1}`),
          url.replace(made.json.upload_id, uuidv7()),
          url.replace(made.json.upload_id, (await announce({ bytes: BODY.length })).json.upload_id),
          url.replace(made.json.upload_id, 'x'),
        ];
        for (const one of tampered) expect([one, (await put(one, BODY)).status]).toEqual([one, 404]);
        const age = "update uploads set expires_at = clock_timestamp() - interval '1 second' where id = $1";
        await api.sql(age, [made.json.upload_id]);
        expect((await put(url, BODY)).status).toBe(404);
        expect(await objects('upload')).not.toContain(made.json.upload_id);
      });

      test('stores nothing of another length, and takes the right one after it', async () => {
        const made = await announce({ bytes: BODY.length });
        for (const body of [Buffer.alloc(0), BODY.subarray(1), Buffer.concat([BODY, BODY])]) {
          const answer = await put(urlOf(made), body);
          expect([answer.status, ((await answer.json()) as Answer['json']).error.param]).toEqual([400, 'bytes']);
        }
        expect(await objects('upload')).not.toContain(made.json.upload_id);
        expect((await put(urlOf(made), BODY)).status).toBe(200);
        expect((await submit({ upload_id: made.json.upload_id })).status).toBe(202);
        const late = await put(urlOf(made), BODY);
        expect([late.status, ((await late.json()) as Answer['json']).error.code]).toEqual([409, 'upload_used']);
      });

      test('answers "continue" to who asks first, and forgets what breaks off', async () => {
        const made = await announce({ bytes: BODY.length });
        const { port, pathname, search } = new URL(urlOf(made));
        const socket = connect(Number(port), '127.0.0.1');
        const head = `PUT ${pathname}${search} HTTP/1.1\r\nHost: x\r\nContent-Length: ${BODY.length}\r\n`;
        socket.write(`${head}Expect: 100-continue\r\n\r\n`);
        expect(String((await once(socket, 'data'))[0])).toBe('HTTP/1.1 100 Continue\r\n\r\n');
        const before = api.seen.length;
        socket.write(BODY.subarray(0, 10));
        socket.destroy();
        await expect.poll(() => api.seen.slice(before).map(({ status }) => status)).toEqual([499]);
        expect(await objects('upload')).not.toContain(made.json.upload_id);
      });
    }
  });
});

test('names the public URL, or what the caller asked', async ({ onTestFinished }) => {
  const announce = { method: 'POST', path: '/v1/uploads', body: '{"bytes":1}' };
  const open = async (publicUrl: string | null) => {
    const api = await createNativeApi(() => ({ publicUrl }));
    onTestFinished(() => api.close());
    return api;
  };
  const [hidden, plain] = await Promise.all([open('https://relay.example/base/'), open(null)]);
  const urlOf = async (api: NativeApi, headers = {}) =>
    (await api.call('node', { ...announce, headers })).json.upload_url as string;
  expect(await urlOf(hidden)).toMatch(
    /^https:\/\/relay\.example\/base\/v1\/uploads\/[0-9a-f-]{36}\?bytes=1&signature=/,
  );
  expect((await urlOf(plain)).startsWith(`${plain.url}/v1/uploads/`)).toBe(true);
  const tls = { 'x-forwarded-proto': 'https' };
  expect((await urlOf(plain, tls)).startsWith(`https://127.0.0.1:${plain.server.port}/v1/uploads/`)).toBe(true);
});
