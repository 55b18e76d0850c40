import { randomBytes } from 'node:crypto';
import { get } from 'node:http';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { uuidv7, uuidv7Time } from '../../../../lib/base/clock.ts';
import type { Database } from '../../../../lib/db/database.ts';
import { sqlState } from '../../../../lib/db/errors.ts';
import { createS3Store } from '../../../../lib/payloads/s3-store.ts';
import { fileIdOf, uuidOfFileId } from '../../../../lib/surfaces/files/file-object.ts';
import { purgeExpiredFiles } from '../../../../lib/surfaces/files/remove-file.ts';
import { type FileRow, holdFile, insertFile } from '../../../../lib/surfaces/files/stored-files.sql.ts';
import { deleteOrphans } from '../../../../lib/worker/sweep/orphans.ts';
import { plaintextOf } from '../../../support/auth-catalog.ts';
import { createBucket, startFaux, TEST_CLIENT } from '../../../support/aws.ts';
import { createFilesApi, creation, type FilesApi } from '../../../support/files-api.ts';
import { formOf } from '../../../support/files-form.ts';
import { type Answer, WAYS } from '../../../support/native-api.ts';

const LIMIT = 16 * 1024 * 1024;
const HOUR = 3_600_000;

let api: FilesApi;
let db: Database;
beforeAll(async () => {
  api = await createFilesApi(LIMIT);
  db = api.native.database.db;
});
afterAll(() => api?.close());
beforeEach(() => api.native.sql('delete from files'));

const ownerOf = async (): Promise<string> => {
  await made(Buffer.from('{}'));
  const [row] = await api.native.sql('select owner from files order by id desc limit 1');
  await api.native.sql('delete from files');
  return row!.owner as string;
};

/** A file uploaded over HTTP; returns its public id. */
async function made(bytes: Buffer, { filename = 'in.jsonl', as = 'ann' } = {}): Promise<string> {
  const form = formOf([
    { name: 'purpose', value: 'batch' },
    { name: 'file', filename, value: bytes },
  ]);
  const { status, json } = await api.call('node', creation(form, {}, as));
  expect(status).toBe(200);
  return json.id;
}

/** The row of a file that the service wrote itself. */
async function written(owner: string, bytes: Buffer, expiresAfterSeconds: number | null = null): Promise<FileRow> {
  const object = { kind: 'output', id: uuidv7() } as const;
  await api.payloads.write(object, [bytes]);
  const file = { owner, purpose: 'batch_output', filename: 'out.jsonl', bytes: bytes.length } as const;
  return insertFile(db, { ...file, object, expiresAfterSeconds });
}

const objectOf = async (id: string): Promise<string> => {
  const [row] = await api.native.sql('select object_id from files where id = $1', [uuidOfFileId(id)]);
  return row!.object_id as string;
};

const expire = (id: string) =>
  api.native.sql("update files set expires_at = clock_timestamp() - interval '1 ms' where id = $1", [uuidOfFileId(id)]);

/** A batch of the OpenAI surface that waits for its validation. */
const waitingBatch = (object: string) =>
  `insert into openai_batches (id, owner, attribution, endpoint, input_file_id, object_id)
   values ('${uuidv7()}', 'o', '{}', '/v1/responses', '${uuidv7()}', '${object}')`;

const expectMissing = (answer: Answer, id: string, param = 'id') => {
  const error = { type: 'invalid_request_error', message: `No such File object: ${id}`, code: 'not_found', param };
  expect([answer.status, answer.json]).toEqual([404, { error }]);
};

describe.each(WAYS)('files over %s', (way) => {
  const call = (path: string, more: { method?: string; as?: string; headers?: Record<string, string> } = {}) =>
    api.call(way, { path, ...more });
  const remove = (id: string, as = 'ann') => call(`/v1/files/${id}`, { method: 'DELETE', as });
  const list = async (query = '', as = 'ann') => (await call(`/v1/files${query}`, { as })).json;

  test("are nobody else's, and no other id is any file", async () => {
    const id = await made(Buffer.from('{}'));
    const unknown = fileIdOf(uuidv7());
    for (const one of [unknown, 'x', `${id}0`, id.replace('file-', 'file_'), 'file-%00']) {
      const shown = one.replace('%00', '\\u0000');
      expectMissing(await call(`/v1/files/${one}`), shown);
      expectMissing(await call(`/v1/files/${one}/content`), shown);
      expectMissing(await remove(one), shown);
    }
    for (const answer of [
      await call(`/v1/files/${id}`, { as: 'bob' }),
      await call(`/v1/files/${id}/content`, { as: 'bob' }),
      await remove(id, 'bob'),
    ]) {
      expectMissing(answer, id);
    }
    expect((await call(`/v1/files/${id}`)).status).toBe(200);
    expect((await call(`/v1/files/${id}`, { as: 'gone' })).status).toBe(401);
    expectMissing(await call(`/v1/files/${'y'.repeat(500)}`), 'y'.repeat(128));
  });

  test('are deleted once, their object with them', async () => {
    const id = await made(Buffer.from('{}'));
    const object = await objectOf(id);
    expect(await api.objects('input')).toContain(object);
    const answer = await remove(id);
    expect([answer.status, answer.json]).toEqual([200, { id, object: 'file', deleted: true }]);
    expect(await api.objects('input')).not.toContain(object);
    expectMissing(await remove(id), id);
    expectMissing(await call(`/v1/files/${id}`), id);
  });

  test('leave their object to a batch that uses it', async () => {
    const id = await made(Buffer.from('{}'));
    const object = await objectOf(id);
    await api.native.sql(waitingBatch(object));
    expect((await remove(id)).status).toBe(200);
    await deleteOrphans(db, api.payloads, Date.now() + 25 * HOUR);
    expect(await api.objects('input')).toContain(object);

    const end = `update openai_batches set ended_at = clock_timestamp(), final_status = 'cancelled' where object_id = $1`;
    await api.native.sql(end, [object]);
    await deleteOrphans(db, api.payloads, Date.now() + 25 * HOUR);
    expect(await api.objects('input')).not.toContain(object);
  });

  test('leave their object to a batch that is being made of them at that moment', async () => {
    const id = await made(Buffer.from('{}'));
    const object = await objectOf(id);
    const [row] = await api.native.sql('select owner from files');
    let removing: Promise<Answer> | null = null;
    await db.transaction(async (tx) => {
      expect(await holdFile(tx, { owner: row!.owner as string, id: uuidOfFileId(id)! })).toMatchObject({
        object_id: object,
      });
      removing = remove(id);
      const waits = `select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%delete from files%'
        and datname = current_database()`;
      await expect.poll(async () => (await api.native.sql(waits)).length).toBe(1);
      await tx.query({ name: 'test_waiting_batch', text: waitingBatch(object), values: [] });
    });
    expect((await removing!).status).toBe(200);
    expect(await api.objects('input')).toContain(object);
    expect(
      await db.transaction((tx) => holdFile(tx, { owner: row!.owner as string, id: uuidOfFileId(id)! })),
    ).toBeNull();
  });

  test('are gone the moment they expire, and the purge takes their objects', async () => {
    const owner = await ownerOf();
    const ids = [await made(Buffer.from('1')), await made(Buffer.from('2')), await made(Buffer.from('3'))];
    const output = await written(owner, Buffer.from('out'), 3600);
    const [expired, used, kept] = (await Promise.all(ids.map(objectOf))) as [string, string, string];
    await api.native.sql(waitingBatch(used));
    for (const id of [ids[0]!, ids[1]!, fileIdOf(output.id)]) await expire(id);

    expectMissing(await call(`/v1/files/${ids[0]}`), ids[0]!);
    expectMissing(await call(`/v1/files/${ids[0]}/content`), ids[0]!);
    expectMissing(await remove(ids[0]!), ids[0]!);
    expect((await list()).data.map(({ id }: { id: string }) => id)).toEqual([ids[2]]);

    expect(await purgeExpiredFiles(db, api.payloads)).toBe(3);
    expect(await purgeExpiredFiles(db, api.payloads)).toBe(0);
    expect(await api.native.sql('select id from files')).toEqual([{ id: uuidOfFileId(ids[2]!) }]);
    const left = await api.objects('input');
    expect([expired, used, kept].map((id) => left.includes(id))).toEqual([false, true, true]);
    expect(await api.objects('output')).not.toContain(output.object_id);
  });

  describe('listed', () => {
    const idsOf = (page: { data: { id: string }[] }) => page.data.map(({ id }) => id);

    test('come newest first, whole and of their owner only', async () => {
      const empty = { object: 'list', data: [], first_id: null, last_id: null, has_more: false };
      expect(await list()).toEqual(empty);
      const [a, b] = [await made(Buffer.from('1')), await made(Buffer.from('2'))];
      await made(Buffer.from('3'), { as: 'bob' });
      const page = await list();
      expect(page).toMatchObject({ object: 'list', first_id: b, last_id: a, has_more: false });
      expect(idsOf(page)).toEqual([b, a]);
      expect(page.data[0]).toEqual((await call(`/v1/files/${b}`)).json);
      expect(Object.keys(page)).toEqual(Object.keys(empty));
    });

    test('come in pages of either order, none twice and none left out', async () => {
      const owner = await ownerOf();
      const rows: string[] = [];
      // Some at once, so that their seconds and milliseconds tie.
      for (let i = 0; i < 3; i++) {
        const some = await Promise.all(Array.from({ length: 8 }, () => written(owner, Buffer.from('x'))));
        rows.push(...some.map(({ id }) => fileIdOf(id)).sort());
      }
      for (const [order, whole] of [
        ['asc', rows],
        ['desc', rows.toReversed()],
      ] as const) {
        const got: string[] = [];
        let after = '';
        let more = true;
        while (more) {
          const page = await list(`?order=${order}&limit=7${after}`);
          got.push(...idsOf(page));
          expect([page.first_id, page.last_id]).toEqual([page.data[0].id, page.data.at(-1).id]);
          after = `&after=${page.last_id}`;
          more = page.has_more;
        }
        expect(got).toEqual(whole);
      }
      expect((await list(`?after=${rows[0]}`)).data).toEqual([]);
    });

    test('come of one purpose', async () => {
      const owner = await ownerOf();
      const input = await made(Buffer.from('1'));
      const output = fileIdOf((await written(owner, Buffer.from('x'))).id);
      expect(idsOf(await list())).toEqual([output, input]);
      expect(idsOf(await list('?purpose=batch'))).toEqual([input]);
      expect(idsOf(await list('?purpose=batch_output'))).toEqual([output]);
      expect(idsOf(await list('?purpose=fine-tune'))).toEqual([]);
    });

    test('follow a file that has expired or was deleted meanwhile, and show no other owner', async () => {
      const [a, b, c] = [await made(Buffer.from('1')), await made(Buffer.from('2')), await made(Buffer.from('3'))];
      const other = await made(Buffer.from('4'), { as: 'bob' });
      await expire(b);
      await call(`/v1/files/${c}`, { method: 'DELETE' });
      for (const after of [b, c, other]) expect(idsOf(await list(`?after=${after}`))).toEqual([a]);
      for (const id of ['x', '', 'file-0']) {
        expectMissing(await call(`/v1/files?after=${id}`), id, 'after');
      }
    });

    test.each([
      ['limit=0', 'limit'],
      ['limit=10001', 'limit'],
      ['limit=abc', 'limit'],
      ['order=up', 'order'],
      ['purpose=%00', 'purpose'],
      ['limit=1&limit=2', 'limit'],
    ])('are refused for %s', async (query, param) => {
      const answer = await call(`/v1/files?${query}`);
      expect([answer.status, answer.json.error]).toMatchObject([400, { code: 'invalid_value', param }]);
    });

    test('end a page at 4.5 MB', async () => {
      const owner = await ownerOf();
      await api.native.sql(
        `insert into files (id, owner, purpose, filename, bytes, object_kind, object_id)
         select gen_random_uuid(), $1, 'batch', repeat('\\u0000', 128), 1, 'input', gen_random_uuid()
         from generate_series(1, 10000)`,
        [owner],
      );
      const first = await list();
      expect(JSON.stringify(first).length).toBeLessThan(4_501_000);
      expect(first.has_more).toBe(true);
      const ids = idsOf(first);
      let page = first;
      while (page.has_more) {
        page = await list(`?after=${page.last_id}`);
        ids.push(...idsOf(page));
      }
      expect(new Set(ids).size).toBe(10_000);
    });
  });

  describe('content', () => {
    const BYTES = randomBytes(700_000);
    let id: string;
    beforeEach(async () => {
      id = await made(BYTES, { filename: `it's (a) “quote".jsonl`.replace('"', '') });
    });
    const content = (range?: string, headers: Record<string, string> = {}) =>
      call(`/v1/files/${id}/content`, { headers: { ...headers, ...(range === undefined ? {} : { range }) } });
    const headersOf = ({ headers }: Answer) =>
      ['content-type', 'content-length', 'content-range', 'accept-ranges'].map((name) => headers.get(name));

    test('is the bytes as they were sent', async () => {
      const answer = await content();
      expect(answer.status).toBe(200);
      expect(answer.bytes.equals(BYTES)).toBe(true);
      expect(headersOf(answer)).toEqual(['application/octet-stream', '700000', null, 'bytes']);
      expect(answer.headers.get('content-disposition')).toBe(
        `attachment; filename="it's (a) _quote.jsonl"; filename*=UTF-8''it%27s%20%28a%29%20%E2%80%9Cquote.jsonl`,
      );
    });

    test.each([
      ['bytes=0-0', 0, 1],
      ['bytes=100-699998', 100, 699_999],
      ['bytes=699999-', 699_999, 700_000],
      ['bytes=5-9999999', 5, 700_000],
      ['bytes=-5', 699_995, 700_000],
      ['bytes=-9999999', 0, 700_000],
    ])('is cut to %s', async (range, from, to) => {
      const answer = await content(range, { 'if-range': '"never"' });
      expect(answer.status).toBe(206);
      expect(answer.bytes.equals(BYTES.subarray(from, to))).toBe(true);
      const shown = `bytes ${from}-${to - 1}/700000`;
      expect(headersOf(answer)).toEqual(['application/octet-stream', String(to - from), shown, 'bytes']);
    });

    test.each(['bytes=0-1,5-6', 'bytes=9-1', 'lines=1-2', 'bytes=x'])('is whole for %s', async (range) => {
      const answer = await content(range);
      expect([answer.status, answer.bytes.length, answer.headers.get('content-range')]).toEqual([200, 700_000, null]);
    });

    test.each(['bytes=700000-', 'bytes=-0'])('says that there is nothing at %s', async (range) => {
      const answer = await content(range);
      expect([answer.status, answer.json.error]).toMatchObject([416, { code: 'invalid_value', param: 'Range' }]);
      expect(answer.headers.get('content-range')).toBe('bytes */700000');
    });

    test('has a head of its own', async () => {
      if (way === 'node') {
        const answer = await call(`/v1/files/${id}/content`, { method: 'HEAD', headers: { range: 'bytes=1-3' } });
        expect([answer.status, answer.bytes.length]).toEqual([206, 0]);
        expect(headersOf(answer)).toEqual(['application/octet-stream', '3', 'bytes 1-3/700000', 'bytes']);
      }
      const whole = await call(`/v1/files/${id}/content`, { method: 'HEAD' });
      expect([whole.status, whole.bytes.length, headersOf(whole)[1]]).toEqual([200, 0, '700000']);
    });

    test('is a 404 when the file goes after its row was read, and a fault when only its object is gone', async () => {
      const object = await objectOf(id);
      await api.payloads.delete([{ kind: 'input', id: object }]);
      expect((await content()).status).toBe(500);
      await api.native.sql('delete from files');
      expectMissing(await content(), id);
    });
  });
});

test('has ids that carry the time of creation by the clock of the database', async () => {
  const rows: FileRow[] = [];
  const owner = await ownerOf();
  for (let i = 0; i < 30; i++) rows.push(await written(owner, Buffer.from('x'), i === 0 ? null : 60));
  expect(rows.map(({ id }) => id)).toEqual(rows.map(({ id }) => id).sort());
  for (const { id, created_at, expires_at } of rows.slice(1)) {
    expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect(uuidv7Time(id)).toBe(created_at.getTime());
    expect(expires_at!.getTime() - created_at.getTime()).toBe(60_000);
  }
  expect(rows[0]!.expires_at).toBeNull();
  const clash = api.native.sql('insert into files select * from files limit 1');
  await expect(clash).rejects.toSatisfy((error) => sqlState(error) === '23505');
});

test('waits for a reader that pauses in the middle of a file', async () => {
  const bytes = randomBytes(LIMIT);
  const id = await made(bytes);
  const headers = { authorization: `Bearer ${plaintextOf('ann')}` };
  const chunks: Buffer[] = [];
  await new Promise<void>((resolve, reject) => {
    get({ port: api.port, path: `/v1/files/${id}/content`, headers }, (response) => {
      response.once('data', (first: Buffer) => {
        chunks.push(first);
        response.pause();
        api.call('node', { path: `/v1/files/${id}` }).then(() => {
          response
            .on('data', (chunk: Buffer) => void chunks.push(chunk))
            .on('end', resolve)
            .resume();
        }, reject);
      });
    }).on('error', reject);
  });
  expect(Buffer.concat(chunks).equals(bytes)).toBe(true);
});

test('sends to the store, on Lambda, for what is too large for one answer', async ({ onTestFinished }) => {
  const server = await startFaux();
  onTestFinished(() => server.stop());
  await createBucket(server.endpoint, 'payloads');
  const payloads = createS3Store({ bucket: 'payloads', prefix: 'p', endpoint: server.endpoint, client: TEST_CLIENT });
  onTestFinished(() => payloads.close());
  const own = await createFilesApi(LIMIT, payloads);
  onTestFinished(() => own.close());
  const bytes = randomBytes(4_500_001);
  const form = formOf([
    { name: 'file', filename: 'in.jsonl', value: bytes },
    { name: 'purpose', value: 'batch' },
  ]);
  const { json } = await own.call('lambda', creation(form));
  const path = `/v1/files/${json.id}/content`;
  const content = (range?: string) => own.call('lambda', { path, headers: range === undefined ? {} : { range } });

  const whole = await content();
  expect([whole.status, whole.text]).toEqual([303, '']);
  const fetched = await fetch(whole.headers.get('location')!);
  expect([fetched.status, fetched.headers.get('content-type')]).toEqual([200, 'application/octet-stream']);
  expect(Buffer.from(await fetched.arrayBuffer()).equals(bytes)).toBe(true);

  const most = await content('bytes=0-4500000');
  expect(most.status).toBe(303);
  const part = await content('bytes=1-4500000');
  expect([part.status, part.bytes.equals(bytes.subarray(1))]).toEqual([206, true]);
  const ranged = await fetch(most.headers.get('location')!, { headers: { range: 'bytes=2-5' } });
  expect([ranged.status, Buffer.from(await ranged.arrayBuffer())]).toEqual([206, bytes.subarray(2, 6)]);
});
