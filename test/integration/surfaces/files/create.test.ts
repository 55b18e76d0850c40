import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../../lib/base/clock.ts';
import { createS3Store } from '../../../../lib/payloads/s3-store.ts';
import { plaintextOf } from '../../../support/auth-catalog.ts';
import { createBucket, startFaux, TEST_CLIENT } from '../../../support/aws.ts';
import { createFilesApi, creation, type FilesApi } from '../../../support/files-api.ts';
import { BOUNDARY, formOf, type Part } from '../../../support/files-form.ts';
import { type Answer, WAYS } from '../../../support/native-api.ts';

const LIMIT = 300_000;
const MIB = 1024 * 1024;
const LINES = Buffer.from('{"custom_id":"a"}\r\nnot json\n\u2028');
const FILE: Part = { name: 'file', filename: 'in.jsonl', value: LINES };
const PURPOSE: Part = { name: 'purpose', value: 'batch' };
const ANCHOR: Part = { name: 'expires_after[anchor]', value: 'created_at' };
const seconds = (value: string): Part => ({ name: 'expires_after[seconds]', value });

async function openFiles(): Promise<FilesApi> {
  return createFilesApi(LIMIT);
}

async function openS3(): Promise<FilesApi> {
  const server = await startFaux();
  await createBucket(server.endpoint, 'payloads');
  const payloads = createS3Store({ bucket: 'payloads', prefix: 'p', endpoint: server.endpoint, client: TEST_CLIENT });
  const api = await createFilesApi(LIMIT, payloads);
  return {
    ...api,
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
] as const)('POST /v1/files into %s', (_store, open) => {
  let api: FilesApi;
  beforeAll(async () => {
    api = await open();
  });
  afterAll(() => api?.close());

  const fileCount = async () => (await api.native.sql('select 1 from files')).length;

  describe.each(WAYS)('over %s', (way) => {
    const create = (parts: readonly Part[], as?: string) => api.call(way, creation(formOf(parts), {}, as));
    /** An error leaves neither a row nor an object. */
    const refused = async (calling: () => Promise<Answer>, status: number, code: string, param: string | null) => {
      const before = [await fileCount(), await api.objects('input')];
      const answer = await calling();
      expect([answer.status, answer.json?.error]).toMatchObject([
        status,
        { type: 'invalid_request_error', code, param },
      ]);
      expect([await fileCount(), await api.objects('input')]).toEqual(before);
      return answer.json.error.message as string;
    };

    test('answers with the file, which holds the bytes as they were sent and expires after 30 days', async () => {
      const { status, json } = await create([PURPOSE, FILE]);
      expect(status).toBe(200);
      expect(json).toEqual({
        id: expect.stringMatching(/^file-[0-9a-f]{32}$/),
        object: 'file',
        bytes: LINES.length,
        created_at: expect.any(Number),
        filename: 'in.jsonl',
        purpose: 'batch',
        status: 'processed',
        expires_at: json.created_at + 2_592_000,
        status_details: null,
      });
      expect(Math.abs(json.created_at - Date.now() / 1000)).toBeLessThan(60);
      const [row] = await api.native.sql('select object_kind, object_id from files order by id desc limit 1');
      const object = { kind: 'input', id: row!.object_id as string } as const;
      expect(row!.object_kind).toBe('input');
      expect(await api.payloads.size(object)).toBe(LINES.length);
      expect(await api.payloads.read(object, 0, LINES.length)).toEqual(LINES);
    });

    test.each([
      ['the file first', [FILE, PURPOSE, ANCHOR, seconds('3600')]],
      ['the file last', [seconds('3600'), ANCHOR, PURPOSE, FILE]],
      ['the file between', [PURPOSE, ANCHOR, FILE, seconds('3600')]],
      [
        'fields that it does not know',
        [{ name: 'x', value: '1' }, { name: 'x', value: '2' }, FILE, PURPOSE, ANCHOR, seconds('3600')],
      ],
    ])('takes %s', async (_, parts) => {
      const { status, json } = await create(parts);
      expect([status, json.bytes, json.expires_at - json.created_at]).toEqual([200, LINES.length, 3600]);
    });

    test.each([
      ['upload', 'upload'],
      ['anonymous_file', 'anonymous_file'],
      ['folder/input', 'input'],
      ['IN.JSONL', 'IN.JSONL'],
      ['', 'upload'],
      [undefined, 'upload'],
    ])('takes a file that is named %s as %s', async (filename, kept) => {
      const { status, json } = await create([PURPOSE, { ...FILE, filename }]);
      expect([status, json.filename]).toEqual([200, kept]);
    });

    test('takes a file of just the limit, in more than one piece, and refuses one byte more', async () => {
      const bytes = randomBytes(LIMIT + 1);
      const made = await create([PURPOSE, { ...FILE, value: bytes.subarray(1) }]);
      expect([made.status, made.json.bytes]).toEqual([200, LIMIT]);
      const body = formOf([{ ...FILE, value: bytes }, PURPOSE]);
      const length = { 'content-length': String(body.length) };
      const message = await refused(
        () => api.call(way, creation(body, way === 'lambda' ? length : {})),
        413,
        'body_too_large',
        'file',
      );
      expect(message).toBe(`file too large: ${body.length} bytes sent, the limit is ${LIMIT} bytes`);
    });

    test('refuses a body that is too large without reading it for a file', async () => {
      const body = formOf([PURPOSE, FILE, { name: 'x', value: Buffer.alloc(LIMIT + 2 * MIB, 'x') }]);
      const length: Record<string, string> = way === 'lambda' ? { 'content-length': String(body.length) } : {};
      await refused(() => api.call(way, creation(body, length)), 413, 'body_too_large', 'file');
    });

    test.each<[string, Part[], string, string]>([
      ['no purpose', [FILE], 'missing_required_parameter', 'purpose'],
      ['no file', [PURPOSE], 'missing_required_parameter', 'file'],
      ['no parts at all', [], 'missing_required_parameter', 'purpose'],
      ['another purpose before the file', [{ ...PURPOSE, value: 'fine-tune' }, FILE], 'invalid_value', 'purpose'],
      ['another purpose behind it', [FILE, { ...PURPOSE, value: 'batch_output' }], 'invalid_value', 'purpose'],
      ['an empty purpose', [{ ...PURPOSE, value: '' }, FILE], 'invalid_value', 'purpose'],
      ['two purposes', [PURPOSE, FILE, PURPOSE], 'invalid_value', 'purpose'],
      ['two files', [FILE, PURPOSE, FILE], 'invalid_value', 'file'],
      ['an empty file', [PURPOSE, { ...FILE, value: '' }], 'invalid_value', 'file'],
      ['another ending', [PURPOSE, { ...FILE, filename: 'in.json' }], 'invalid_value', 'file'],
      ['a name with a line end', [PURPOSE, { ...FILE, filename: 'a\nb.jsonl' }], 'missing_required_parameter', 'file'],
      ['an ending with CRLF', [PURPOSE, { ...FILE, filename: 'a.b\r\nb.jsonl' }], 'invalid_value', 'file'],
      ['another anchor', [PURPOSE, { ...ANCHOR, value: 'now' }, seconds('3600'), FILE], 'invalid_value', ANCHOR.name],
      ['no anchor', [PURPOSE, FILE, seconds('3600')], 'missing_required_parameter', ANCHOR.name],
      ['no seconds', [PURPOSE, FILE, ANCHOR], 'missing_required_parameter', 'expires_after[seconds]'],
      ['too short an expiry', [PURPOSE, FILE, ANCHOR, seconds('3599')], 'invalid_value', 'expires_after[seconds]'],
      ['too long an expiry', [PURPOSE, FILE, ANCHOR, seconds('2592001')], 'invalid_value', 'expires_after[seconds]'],
      ['an expiry of no number', [PURPOSE, FILE, ANCHOR, seconds('1e4')], 'invalid_value', 'expires_after[seconds]'],
      [
        'an expiry in one part',
        [PURPOSE, { name: 'expires_after', value: '{}' }, FILE],
        'invalid_value',
        'expires_after',
      ],
      ['a field without end', [{ ...PURPOSE, value: 'x'.repeat(20_000) }, FILE], 'invalid_value', 'purpose'],
      ['a file and an upload', [PURPOSE, FILE, { name: 'upload_id', value: uuidv7() }], 'invalid_value', 'upload_id'],
    ])('refuses %s', async (_, parts, code, param) => {
      await refused(() => create(parts), 400, code, param);
    });

    test('refuses more parts than any client sends', async () => {
      const many = Array.from({ length: 150 }, (_, i) => ({ name: `x${i}`, value: '' }));
      await refused(() => create([...many, PURPOSE, FILE]), 400, 'invalid_value', null);
    });

    test.each<[string, string | Buffer, string]>([
      ['other scripts', 'über-批.jsonl', 'über-批.jsonl'],
      ['the case of its ending', 'IN.JSONL', 'IN.JSONL'],
      ['no folders', '/home/me/in.jsonl', 'in.jsonl'],
      ['no folders of Windows', 'C:\\data\\in.jsonl', 'in.jsonl'],
      ['NUL and other controls, escaped', 'a\u0000\tb\u007f.jsonl', 'a\\u0000\\u0009b\\u007f.jsonl'],
      ['the first 128 characters', `${'é'.repeat(300)}.jsonl`, 'é'.repeat(128)],
      ['what is no UTF-8, as well as it goes', Buffer.from([0x61, 0xff, ...Buffer.from('.jsonl')]), 'a\ufffd.jsonl'],
    ])('keeps of a name: %s', async (_, filename, kept) => {
      const { status, json } = await create([PURPOSE, { ...FILE, filename }]);
      expect([status, json.filename]).toEqual([200, kept]);
      const again = await api.call(way, { path: `/v1/files/${json.id}` });
      expect(again.text).toBe(JSON.stringify(json));
    });

    test.each<[string, Record<string, string>, number, string]>([
      ['JSON', { 'content-type': 'application/json' }, 415, 'unsupported_media_type'],
      [
        'a form of the other kind',
        { 'content-type': 'application/x-www-form-urlencoded' },
        415,
        'unsupported_media_type',
      ],
      ['no boundary', { 'content-type': 'multipart/form-data' }, 400, 'invalid_value'],
      [
        'a boundary without end',
        { 'content-type': `multipart/form-data; boundary=${'b'.repeat(1000)}` },
        400,
        'invalid_value',
      ],
    ])('refuses %s by the content type', async (_, headers, status, code) => {
      await refused(() => api.call(way, creation(formOf([PURPOSE, FILE]), headers)), status, code, 'Content-Type');
    });

    test('refuses a compressed body', async () => {
      const body = creation(formOf([PURPOSE, FILE]), { 'content-encoding': 'gzip' });
      await refused(() => api.call(way, body), 415, 'unsupported_media_type', null);
    });

    test.each<[string, (whole: Buffer) => Buffer]>([
      ['nothing', () => Buffer.alloc(0)],
      ['no form', () => Buffer.from('{"file":1}')],
      ['another boundary', (whole) => Buffer.from(String(whole).replaceAll(BOUNDARY, 'other'))],
      ['a cut in the file', (whole) => whole.subarray(0, whole.indexOf('not json'))],
      ['a cut in the head of a part', (whole) => whole.subarray(0, whole.indexOf('filename'))],
      ['a cut before the last boundary', (whole) => whole.subarray(0, whole.length - BOUNDARY.length - 6)],
      ['a cut in the last boundary', (whole) => whole.subarray(0, whole.length - 4)],
    ])('refuses a body of %s', async (_, cut) => {
      await refused(() => api.call(way, creation(cut(formOf([PURPOSE, FILE])))), 400, 'invalid_value', null);
    });

    test('asks for a key before anything else', async () => {
      const answer = await api.call(way, creation(formOf([]), {}, null));
      expect([answer.status, answer.json.error.code]).toEqual([401, 'missing_api_key']);
    });

    describe('of an upload', () => {
      const announce = (bytes: number, as = 'ann') =>
        api.native.call(way, { method: 'POST', path: '/v1/uploads', body: JSON.stringify({ bytes }), as });
      const uploaded = async (body = LINES): Promise<string> => {
        const { json } = await announce(body.length);
        await api.payloads.write({ kind: 'upload', id: json.upload_id }, [body]);
        return json.upload_id;
      };
      const of = (id: string, ...more: Part[]): Part[] => [PURPOSE, { name: 'upload_id', value: id }, ...more];

      test('makes a file of it, once, and takes it away', async () => {
        const id = await uploaded();
        const { status, json } = await create(of(id));
        expect([status, json]).toMatchObject([
          200,
          { bytes: LINES.length, filename: 'upload.jsonl', purpose: 'batch' },
        ]);
        const content = await api.call(way, { path: `/v1/files/${json.id}/content` });
        expect(content.bytes).toEqual(LINES);
        expect(await api.objects('upload')).not.toContain(id);
        await refused(() => create(of(id)), 409, 'upload_used', 'upload_id');
        const batch = { method: 'POST', path: '/v1/batches', body: JSON.stringify({ upload_id: id }) };
        const { json: other } = await api.native.call(way, batch);
        expect(other.error.code).toBe('upload_used');
      });

      test('names it as it is told, by the rules of names', async () => {
        const { json } = await create(of(await uploaded(), { name: 'filename', value: 'b/mine.jsonl' }));
        expect(json.filename).toBe('mine.jsonl');
        const id = await uploaded();
        const wrong = of(id, { name: 'filename', value: 'mine.txt' });
        await refused(() => create(wrong), 400, 'invalid_value', 'filename');
        expect((await create(of(id))).status).toBe(200);
      });

      test('gives it to one of several that ask at once', async () => {
        const [id, before] = [await uploaded(), (await api.objects('input')).length];
        const answers = await Promise.all(Array.from({ length: 5 }, () => create(of(id))));
        expect(answers.map(({ status }) => status).sort()).toEqual([200, 409, 409, 409, 409]);
        expect((await api.objects('input')).length).toBe(before + 1);
      });

      test('refuses what is unknown, expired, of another, not put or too large', async () => {
        const id = await uploaded();
        for (const one of ['x', randomUUID()]) {
          await refused(() => create(of(one)), 404, 'not_found', 'upload_id');
        }
        await refused(() => create(of(id), 'bob'), 404, 'not_found', 'upload_id');
        await api.native.sql("update uploads set expires_at = clock_timestamp() - interval '1 s' where id = $1", [id]);
        await refused(() => create(of(id)), 404, 'not_found', 'upload_id');
        const { json } = await announce(LINES.length);
        await refused(() => create(of(json.upload_id)), 409, 'upload_incomplete', 'upload_id');
        const large = (await announce(LIMIT + 1)).json.upload_id;
        const message = await refused(() => create(of(large)), 413, 'body_too_large', 'upload_id');
        expect(message).toBe(`file too large: ${LIMIT + 1} bytes sent, the limit is ${LIMIT} bytes`);
      });
    });
  });

  const head = (length: number | null, more = '') =>
    `POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${plaintextOf('ann')}\r\n` +
    `Content-Type: multipart/form-data; boundary=${BOUNDARY}\r\n${more}` +
    `${length === null ? 'Transfer-Encoding: chunked' : `Content-Length: ${length}`}\r\n\r\n`;

  test('tells a client that asks first to send nothing when it announces too much', async () => {
    const socket = connect(api.port, '127.0.0.1');
    socket.write(head(LIMIT + 2 * MIB, 'Expect: 100-continue\r\n'));
    expect(String((await once(socket, 'data'))[0])).toMatch(/^HTTP\/1\.1 413 /);
    socket.destroy();
  });

  test('answers a client that sends too much, and does not say how much, before its end', async () => {
    const before = await api.objects('input');
    const socket = connect(api.port, '127.0.0.1');
    socket.write(head(null));
    const chunk = (bytes: Buffer) =>
      Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')]);
    const form = formOf([FILE, PURPOSE]);
    socket.write(chunk(form.subarray(0, form.indexOf('not json'))));
    socket.write(chunk(Buffer.alloc(LIMIT)));
    const answer = String((await once(socket, 'data'))[0]);
    expect(answer).toMatch(/^HTTP\/1\.1 413 /);
    expect(answer).toContain(`more than ${LIMIT} bytes sent, the limit is ${LIMIT} bytes`);
    socket.end(`${chunk(form)}0\r\n\r\n`);
    await once(socket.resume(), 'close');
    expect(await api.objects('input')).toEqual(before);
  });

  test('leaves nothing of a file whose sender went away', async () => {
    const before = [await fileCount(), await api.objects('input')];
    const from = api.seen.length;
    const form = formOf([PURPOSE, { ...FILE, value: Buffer.alloc(LIMIT, 'x') }]);
    const socket = connect(api.port, '127.0.0.1');
    socket.write(head(form.length, 'Expect: 100-continue\r\n'));
    expect(String((await once(socket, 'data'))[0])).toBe('HTTP/1.1 100 Continue\r\n\r\n');
    await promisify((done: () => void) => socket.write(form.subarray(0, form.length - 100), done))();
    socket.destroy();
    await expect.poll(() => api.seen.slice(from).map(({ status }) => status)).toEqual([499]);
    expect([await fileCount(), await api.objects('input')]).toEqual(before);
  });
});
