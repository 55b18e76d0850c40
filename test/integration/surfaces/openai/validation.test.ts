import { Buffer } from 'node:buffer';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import type { Database } from '../../../../lib/db/database.ts';
import { uuidOfFileId } from '../../../../lib/surfaces/files/file-object.ts';
import { deleteFile } from '../../../../lib/surfaces/files/stored-files.sql.ts';
import {
  claimValidation,
  endValidation,
  renewValidation,
  startOpenaiBatch,
} from '../../../../lib/surfaces/openai/validation/validation.sql.ts';
import { createValidator } from '../../../../lib/surfaces/openai/validation/validator.ts';
import { WAYS } from '../../../support/native-api.ts';
import { createOpenaiApi, type OpenaiApi, ownerOf, uuidOf } from '../../../support/openai-api.ts';

// One for all: each test leaves nothing that waits.
const opened: OpenaiApi[] = [];
const open = async (...change: Parameters<typeof createOpenaiApi>) => {
  const made = await createOpenaiApi(...change);
  opened.push(made);
  return made;
};
const api = await open();
afterAll(() => Promise.all(opened.map((one) => one.close())));
afterEach(async () => {
  const waiting = await api.sql('select id from openai_batches where in_progress_at is null and ended_at is null');
  expect(waiting).toEqual([]);
});

const line = (id: string, url = '/v1/chat/completions', body: object = { model: 'm' }) =>
  JSON.stringify({ custom_id: id, method: 'POST', url, body });
const core = (id: string) => api.sql('select * from batches where id = $1::uuid', [uuidOf(id)]);
const leaseOut = (id: string) =>
  api.sql(`update openai_batches set lease_until = clock_timestamp() - interval '1 s' where id = $1::uuid`, [
    uuidOf(id),
  ]);

describe.each(WAYS)('the validation of a batch created by %s', (way) => {
  test('makes the items point into the file and starts the batch', async () => {
    const text = `\ufeff\n${line('a')}\r\n\n${line('', undefined, { model: 'm', n: 1 })}`;
    const fileId = await api.file(text);
    const { id, created_at } = await api.create(way, fileId);
    // The file does not matter any more.
    await deleteFile(api.native.database.db, { owner: ownerOf('ann'), id: uuidOfFileId(fileId)! });
    api.native.wakes.length = 0;
    expect(await api.validator.run()).toBe(1);
    expect(api.native.wakes).toEqual([{ kind: 'work' }]);
    expect(await api.get(id)).toMatchObject({
      status: 'in_progress',
      model: 'm',
      in_progress_at: expect.any(Number),
      request_counts: { total: 2, completed: 0, failed: 0 },
    });
    const [batch] = await core(id);
    expect(batch).toMatchObject({
      surface: 'openai',
      shape: 'openai',
      owner: ownerOf('ann'),
      policy: 'p',
      total_items: 2,
      open_items: 2,
      max_attempts: 32_767,
      on_limit: 'wait',
    });
    // The window counts from the create.
    expect(Math.abs((batch!.expires_at as Date).getTime() / 1000 - created_at - 86_400)).toBeLessThan(2);
    const items = await api.sql(
      'select input_offset, input_length from batch_items where batch_id = $1::uuid order by idx',
      [uuidOf(id)],
    );
    const bytes = Buffer.from(text);
    const bodies = items.map(({ input_offset: at, input_length: length }) =>
      bytes.toString('utf8', Number(at), Number(at) + Number(length)),
    );
    expect(bodies).toEqual(['{"model":"m"}', '{"model":"m","n":1}']);
    const ids = { kind: 'custom_ids' as const, id: String(batch!.custom_ids_id) };
    expect((await api.payloads.read(ids, 0, await api.payloads.size(ids))).toString()).toBe('"a"\n""\n');
    expect(await api.validator.run()).toBe(0);
  });

  test.each([
    ['/v1/responses', 'openai_responses'],
    ['/v1/embeddings', 'openai_embeddings'],
  ])('gives items for %s the shape %s', async (endpoint, shape) => {
    const { id } = await api.create(way, await api.file(line('a', endpoint)), { endpoint });
    await api.validator.run();
    expect((await core(id))[0]).toMatchObject({ shape });
  });

  test('fails a batch with all that is wrong with its file, before anything runs', async () => {
    const before = await api.objects('custom_ids');
    const text = [line('a'), '', '{', line('a'), line('b', '/v1/responses'), line('c', undefined, { stream: true })];
    const { id } = await api.create(way, await api.file(text.join('\n')));
    await api.validator.run();
    const batch = await api.get(id);
    expect(batch).toMatchObject({
      status: 'failed',
      failed_at: expect.any(Number),
      in_progress_at: null,
      output_file_id: null,
      error_file_id: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
      errors: { object: 'list' },
    });
    expect(batch.errors.data).toEqual([
      { code: 'invalid_json_line', message: 'This line is not parseable as valid JSON.', param: null, line: 3 },
      { code: 'duplicate_custom_id', message: expect.stringContaining("'a' of line 4"), param: 'custom_id', line: 4 },
      { code: 'mismatched_url', message: expect.stringContaining('does not match'), param: 'url', line: 5 },
      { code: 'stream_not_supported', message: expect.any(String), param: 'body.stream', line: 6 },
    ]);
    expect(await core(id)).toEqual([]);
    expect(await api.objects('custom_ids')).toEqual(before);
  });

  test.each([
    ['', 'empty_file'],
    ['\n\n', 'empty_file'],
  ])('fails a file without a request: %j', async (text, code) => {
    const { id } = await api.create(way, await api.file(text));
    await api.validator.run();
    expect((await api.get(id)).errors.data).toMatchObject([{ code, line: null }]);
  });
});

describe('a validation', () => {
  test('ends as expired when the window has closed before it', async () => {
    const { id } = await api.create('node', await api.file(line('a')));
    await api.sql(`update openai_batches set expires_at = clock_timestamp() where id = $1::uuid`, [uuidOf(id)]);
    await api.validator.run();
    expect(await api.get(id)).toMatchObject({ status: 'expired', expired_at: expect.any(Number), errors: null });
    expect(await core(id)).toEqual([]);
  });

  test('is not begun when too little time is left for it', async () => {
    const { id } = await api.create('node', await api.file(line('a')));
    expect(await api.validator.run(() => 59_000)).toBe(0);
    expect((await api.get(id)).status).toBe('validating');
    expect(await api.validator.run(() => 61_000)).toBe(1);
  });

  test('is left to the replica that has it, and taken over when that one is gone', async () => {
    const { db } = api.native.database;
    const { id } = await api.create('node', await api.file(line('a')));
    const lost = (await claimValidation(db))!;
    expect(lost.id).toBe(uuidOf(id));
    expect(await api.validator.run()).toBe(0);
    await leaseOut(id);
    // The lost one's own statements still find a row that waits, but not its lease.
    const mine = (await claimValidation(db))!;
    expect(await renewValidation(db, lost)).toBeNull();
    expect(await startOpenaiBatch(db, lost, { model: null, rules: 1 })).toBe(false);
    expect(await endValidation(db, lost, { status: 'expired' })).toBe(false);
    const renewed = await renewValidation(db, mine);
    expect(renewed).not.toBeNull();
    await leaseOut(id);
    await api.validator.run();
    expect((await api.get(id)).status).toBe('in_progress');
    expect(await startOpenaiBatch(db, { ...mine, lease: renewed! }, { model: null, rules: 1 })).toBe(false);
  });

  test('of one batch at a time makes each batch once, however many replicas look', async () => {
    const ids: string[] = [];
    for (let i = 0; i < 6; i++) ids.push((await api.create('node', await api.file(line(`${i}`)))).id);
    const others = Array.from({ length: 3 }, () => createValidator(api.deps));
    const counts = await Promise.all(others.map((one) => one.run()));
    expect(counts.reduce((sum, n) => sum + n)).toBe(6);
    for (const id of ids) expect(await core(id)).toHaveLength(1);
    await Promise.all(others.map((one) => one.stop()));
  });

  test('fails when the owner has too many items pending', async () => {
    const few = await open(() => ({ maxPendingItemsPerOwner: 2 }));
    const first = await few.create('node', await few.file([line('a'), line('b')].join('\n')));
    const second = await few.create('node', await few.file(line('a')));
    expect(await few.validator.run()).toBe(2);
    expect((await few.get(first.id)).status).toBe('in_progress');
    expect(await few.get(second.id)).toMatchObject({
      status: 'failed',
      errors: { data: [{ code: 'too_many_pending', message: expect.stringContaining('the limit is 2') }] },
    });
  });

  test('waits for a store that does not answer, and goes on later', async () => {
    let broken = true;
    const faulty = await open(({ payloads }) => ({
      payloads: {
        ...payloads,
        async *stream(ref, offset, length) {
          yield* payloads.stream(ref, offset, length);
          if (broken) throw new Error('EIO');
        },
      },
    }));
    const { id } = await faulty.create('node', await faulty.file(line('a')));
    expect(await faulty.validator.run()).toBe(1);
    expect((await faulty.get(id)).status).toBe('validating');
    expect(await faulty.validator.run()).toBe(0);
    broken = false;
    await faulty.sql(`update openai_batches set lease_until = clock_timestamp() - interval '1 s'`);
    expect(await faulty.validator.run()).toBe(1);
    expect((await faulty.get(id)).status).toBe('in_progress');
    expect(await faulty.objects('custom_ids')).toHaveLength(1);
  });

  test('waits for a file that is not there yet, but not for ever', async () => {
    const { id } = await api.create('node', await api.file(line('a')));
    const [row] = await api.sql('select object_id from openai_batches where id = $1::uuid', [uuidOf(id)]);
    await api.payloads.delete([{ kind: 'input', id: String(row!.object_id) }]);
    await api.validator.run();
    expect((await api.get(id)).status).toBe('validating');
    await api.sql(
      `update openai_batches set lease_until = null, created_at = created_at - interval '11 minutes' where id = $1::uuid`,
      [uuidOf(id)],
    );
    await api.validator.run();
    expect(await api.get(id)).toMatchObject({
      status: 'failed',
      errors: { data: [{ code: 'input_file_unreadable' }] },
    });
  });

  test('that a stop cuts off can be taken up by another at once', async () => {
    const arrived = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const slow = await open(({ payloads }) => ({
      payloads: {
        ...payloads,
        async *stream(ref, offset, length) {
          arrived.resolve();
          await goOn.promise;
          yield* payloads.stream(ref, offset, length);
        },
      },
    }));
    const { id } = await slow.create('node', await slow.file(line('a')));
    slow.validator.poke();
    await arrived.promise;
    const stopped = slow.validator.stop();
    goOn.resolve();
    await stopped;
    expect((await slow.get(id)).status).toBe('validating');
    const other = createValidator({ ...slow.deps, payloads: slow.payloads });
    expect(await other.run()).toBe(1);
    expect((await slow.get(id)).status).toBe('in_progress');
  });

  test('takes away what it wrote when the batch was cancelled, or started by another, at the last moment', async () => {
    let interfere: (() => Promise<unknown>) | null = null;
    const beaten = await open(({ payloads }) => ({
      payloads: {
        ...payloads,
        async writeStream(ref, source) {
          const length = await payloads.writeStream(ref, source);
          await interfere?.();
          return length;
        },
      },
    }));
    const cancelled = await beaten.create('node', await beaten.file(line('a')));
    interfere = () => beaten.call('node', { method: 'POST', path: `/v1/batches/${cancelled.id}/cancel` });
    await beaten.validator.run();
    expect((await beaten.get(cancelled.id)).status).toBe('cancelled');
    expect(await beaten.objects('custom_ids')).toEqual([]);

    const shared = await beaten.create('node', await beaten.file(line('b')));
    const other = createValidator({ ...beaten.deps, payloads: beaten.payloads });
    interfere = async () => {
      await beaten.sql(`update openai_batches set lease_until = clock_timestamp() - interval '1 s'`);
      expect(await other.run()).toBe(1);
    };
    beaten.native.wakes.length = 0;
    await beaten.validator.run();
    expect((await beaten.get(shared.id)).status).toBe('in_progress');
    expect(beaten.native.wakes).toEqual([{ kind: 'work' }]);
    const used = await beaten.sql('select custom_ids_id as id from batches');
    expect(await beaten.objects('custom_ids')).toEqual(used.map(({ id }) => id));
  });

  test('keeps its lease while it reads, and ends nothing once it has lost it', async () => {
    let now = 0;
    let renewals: unknown[] = [];
    let interfere: (() => Promise<unknown>) | null = null;
    const leases = () => ticking.sql('select lease_until::text from openai_batches');
    const ticking: OpenaiApi = await open(({ payloads, clock }) => ({
      clock: { ...clock, monotonic: () => now },
      payloads: {
        ...payloads,
        async *stream(ref, offset, length) {
          const bytes = await payloads.read(ref, offset, length);
          for (let at = 0; at < bytes.length; at++) {
            now += 15_000;
            if (at < 8) renewals.push(...(await leases()).map(({ lease_until }) => String(lease_until)));
            if (at === 8) await interfere?.();
            yield bytes.subarray(at, at + 1);
          }
        },
      },
    }));
    const { db } = ticking.native.database as { db: Database };
    const { id } = await ticking.create('node', await ticking.file(line('a')));
    interfere = async () => {
      await ticking.sql(`update openai_batches set lease_until = clock_timestamp() - interval '1 s'`);
      expect(await claimValidation(db)).not.toBeNull();
    };
    await ticking.validator.run();
    expect(new Set(renewals).size).toBeGreaterThan(2);
    expect((await ticking.get(id)).status).toBe('validating');
    expect(await ticking.sql('select id from batches')).toEqual([]);
    interfere = null;
    renewals = [];
    await ticking.sql(`update openai_batches set lease_until = null`);
    await ticking.validator.run();
    expect((await ticking.get(id)).status).toBe('in_progress');
  });
});
