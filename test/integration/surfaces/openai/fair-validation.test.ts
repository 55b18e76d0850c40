import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { PayloadRef } from '../../../../lib/payloads/payload-store.ts';
import {
  claimValidation,
  purgeValidationTurns,
  releaseValidation,
} from '../../../../lib/surfaces/openai/validation/validation.sql.ts';
import { createValidator } from '../../../../lib/surfaces/openai/validation/validator.ts';
import { WAYS, type Way } from '../../../support/native-api.ts';
import { createOpenaiApi, type OpenaiApi, ownerOf, uuidOf } from '../../../support/openai-api.ts';

// Validations take turns by owner, and a file is read once ("Validation of the input file" in docs/spec/openai-surface.md).

let api: OpenaiApi;
/** The input objects that were read from their start, in order. */
let reads: string[];

beforeEach(async () => {
  reads = [];
  api = await createOpenaiApi(({ payloads }) => ({
    payloads: {
      ...payloads,
      stream(ref: PayloadRef, offset: number, length: number) {
        if (ref.kind === 'input') reads.push(ref.id);
        return payloads.stream(ref, offset, length);
      },
    },
  }));
});
afterEach(() => api.close());

const line = (id: string, url = '/v1/chat/completions') =>
  JSON.stringify({ custom_id: id, method: 'POST', url, body: { model: 'm', id } });

async function create(as: string, fileId: string, way: Way = 'node', endpoint = '/v1/chat/completions') {
  const body = JSON.stringify({ input_file_id: fileId, endpoint, completion_window: '24h' });
  const answer = await api.call(way, { method: 'POST', path: '/v1/batches', as, body });
  expect(answer.status).toBe(200);
  return String(answer.json.id);
}

/** The names of the owners whose batches run, in the order in which they began. */
async function begun() {
  const rows = await api.sql(
    'select owner from openai_batches where in_progress_at is not null order by in_progress_at',
  );
  return rows.map(({ owner }) => ['ann', 'bob'].find((name) => ownerOf(name) === owner));
}

const itemsIn = (id: string) =>
  api.sql(
    `select idx, state, input_offset, input_length, input_crc from batch_items where batch_id = $1::uuid order by idx`,
    [uuidOf(id)],
  );

async function customIdsOf(id: string) {
  const [row] = await api.sql('select custom_ids_id from batches where id = $1::uuid', [uuidOf(id)]);
  const ref = { kind: 'custom_ids' as const, id: String(row!.custom_ids_id) };
  return { id: ref.id, text: (await api.payloads.read(ref, 0, await api.payloads.size(ref))).toString() };
}

describe('turns', () => {
  test.each(WAYS)('put the one batch of an owner, by %s, behind one of an owner with many', async (way) => {
    for (let i = 0; i < 4; i++) await create('ann', await api.file(line(`${i}`)), way);
    await create('bob', await api.file(line('b'), { as: 'bob' }), way);
    await api.validator.run();
    expect(await begun()).toEqual(['ann', 'bob', 'ann', 'ann', 'ann']);
    // The one who was served last waits, although its batch is older.
    await create('ann', await api.file(line('c')), way);
    await create('bob', await api.file(line('d'), { as: 'bob' }), way);
    await api.validator.run();
    expect((await begun()).slice(5)).toEqual(['bob', 'ann']);
  });

  test('hold over all replicas, and an owner who waits alone has every one', async () => {
    const { db } = api.native.database;
    for (let i = 0; i < 3; i++) await create('ann', await api.file(line(`${i}`)));
    for (let i = 0; i < 2; i++) await create('bob', await api.file(line(`${i}`), { as: 'bob' }));
    const owners: (string | undefined)[] = [];
    for (let job = await claimValidation(db); job !== null; job = await claimValidation(db)) {
      owners.push(['ann', 'bob'].find((name) => ownerOf(name) === job!.attribution.owner));
    }
    expect(owners).toEqual(['ann', 'bob', 'ann', 'bob', 'ann']);
  });

  test('that claims take at the same time are different ones', async () => {
    const { db } = api.native.database;
    for (let i = 0; i < 3; i++) await create('ann', await api.file(line(`${i}`)));
    await create('bob', await api.file(line('b'), { as: 'bob' }));
    const jobs = await Promise.all([claimValidation(db), claimValidation(db)]);
    expect(new Set(jobs.map((job) => job!.attribution.owner)).size).toBe(2);
  });

  test('do not stop at a batch that its cancel holds', async () => {
    const { db } = api.native.database;
    const held = await create('ann', await api.file(line('a')));
    const free = await create('ann', await api.file(line('b')));
    await db.transaction(async (tx) => {
      const text = 'select from openai_batches where id = $1::uuid for update';
      await tx.query({ name: 'hold', text, values: [uuidOf(held)] });
      expect((await claimValidation(db))!.id).toBe(uuidOf(free));
    });
  });

  test('of a day ago are forgotten', async () => {
    await create('ann', await api.file(line('a')));
    await api.validator.run();
    await purgeValidationTurns(api.native.database.db);
    expect(await api.sql('select from validation_turns')).toHaveLength(1);
    await api.sql(`update validation_turns set taken_at = taken_at - interval '25 hours'`);
    await purgeValidationTurns(api.native.database.db);
    expect(await api.sql('select from validation_turns')).toEqual([]);
  });
});

describe('a file', () => {
  test('of many batches is read once, by however many replicas, and each has its items', async () => {
    const fileId = await api.file([line('a'), '', line('b')].join('\n'));
    const ids: string[] = [];
    for (let i = 0; i < 6; i++) ids.push(await create('ann', fileId));
    const replicas = [api.validator, createValidator(api.deps), createValidator(api.deps)];
    const counts = await Promise.all(replicas.map((one) => one.run()));
    expect(counts.reduce((sum, n) => sum + n)).toBe(6);
    expect(reads).toHaveLength(1);
    const first = await itemsIn(ids[0]!);
    expect(first.map(({ idx }) => idx)).toEqual([0, 1]);
    const objects = new Set<string>();
    for (const id of ids) {
      expect(await api.get(id)).toMatchObject({ status: 'in_progress', model: 'm', request_counts: { total: 2 } });
      expect(await itemsIn(id)).toEqual(first);
      const customIds = await customIdsOf(id);
      expect(customIds.text).toBe('"a"\n"b"\n');
      objects.add(customIds.id);
    }
    // Each has an object of its own: the end of one batch takes nothing from another.
    expect(objects.size).toBe(6);
  });

  test('that is being checked is not taken for another batch, until its lease ends', async () => {
    const { db } = api.native.database;
    const fileId = await api.file(line('a'));
    await create('ann', fileId);
    await create('ann', fileId);
    const job = (await claimValidation(db))!;
    expect(await claimValidation(db)).toBeNull();
    await releaseValidation(db, job, 0);
    expect((await claimValidation(db))!.id).toBe(job.id);
  });

  test('with faults is read once, and fails every batch with the same ones', async () => {
    const fileId = await api.file([line('a'), '{', line('a')].join('\n'));
    const ids = [await create('ann', fileId), await create('ann', fileId)];
    await api.validator.run();
    const late = await create('ann', fileId);
    await api.validator.run();
    expect(reads).toHaveLength(1);
    const [first, ...others] = await Promise.all([...ids, late].map((id) => api.get(id)));
    expect(first.errors.data.map((one: { code: string }) => one.code)).toEqual([
      'invalid_json_line',
      'duplicate_custom_id',
    ]);
    for (const other of others) expect(other).toMatchObject({ status: 'failed', errors: first.errors });
  });

  test('that its owner has no room for is read once, however often it is tried', async () => {
    api.deps.maxPendingItemsPerOwner = 1;
    const fileId = await api.file([line('a'), line('b')].join('\n'));
    const ids = [await create('ann', fileId), await create('ann', fileId), await create('ann', fileId)];
    await api.validator.run();
    expect(reads).toHaveLength(1);
    for (const id of ids) expect((await api.get(id)).errors.data).toMatchObject([{ code: 'too_many_pending' }]);
    // With room again it is read once more: nothing was kept of it but its size.
    api.deps.maxPendingItemsPerOwner = 10;
    for (let i = 0; i < 2; i++) expect((await api.get(await validated(fileId))).status).toBe('in_progress');
    expect(reads).toHaveLength(2);
  });

  test.each([
    ['for another endpoint', async (fileId: string) => create('ann', fileId, 'node', '/v1/responses')],
    [
      'when the rules have changed',
      async (fileId: string) => {
        await api.sql('update openai_batches set check_rules = 0');
        return create('ann', fileId);
      },
    ],
    [
      'when it was checked by the previous release',
      async (fileId: string) => {
        await api.sql('update openai_batches set check_rules = null');
        return create('ann', fileId);
      },
    ],
    [
      'when the earlier batch is gone',
      async (fileId: string) => {
        await api.sql('delete from batches');
        return create('ann', fileId);
      },
    ],
    [
      'when the custom_ids of the earlier batch are gone',
      async (fileId: string) => {
        const [row] = await api.sql('select custom_ids_id from batches');
        await api.payloads.delete([{ kind: 'custom_ids', id: String(row!.custom_ids_id) }]);
        return create('ann', fileId);
      },
    ],
  ])('is read again %s', async (_, again) => {
    const fileId = await api.file(line('a'));
    expect((await api.get(await validated(fileId))).status).toBe('in_progress');
    const id = await again(fileId);
    await api.validator.run();
    expect(reads).toHaveLength(2);
    expect((await api.get(id)).status).not.toBe('validating');
  });

  test('whose bytes are lost after it was checked fails its next batch as unreadable', async () => {
    const fileId = await api.file(line('a'));
    await validated(fileId);
    const [row] = await api.sql('select object_id from openai_batches');
    await api.payloads.delete([{ kind: 'input', id: String(row!.object_id) }]);
    const id = await create('ann', fileId);
    await api.sql(`update openai_batches set created_at = created_at - interval '11 minutes'`);
    await api.validator.run();
    expect((await api.get(id)).errors.data).toMatchObject([{ code: 'input_file_unreadable' }]);
  });
});

async function validated(fileId: string): Promise<string> {
  const id = await create('ann', fileId);
  await api.validator.run();
  return id;
}
