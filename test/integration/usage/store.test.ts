import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { insertBatch } from '../../../lib/batch/batches.sql.ts';
import { maintainUsagePartitions } from '../../../lib/worker/sweep/sweep.sql.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { insertEvents, insertOwner } from '../../support/usage-events.ts';

const DAY = 86_400_000;
let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

const rows = (text: string, values?: unknown[]) => database.sql(text, values);

const newBatch = (id: string) => ({
  id,
  surface: 'relay',
  owner: 'user:u1',
  policyId: 'p1',
  policy: 'gold',
  projectId: 'j1',
  project: 'site',
  teamId: 't1',
  team: 'web',
  principalKind: 'user' as const,
  principalId: 'u1',
  credentialKind: 'token' as const,
  credentialId: 'jti',
  tokenExpiresAt: null,
  tokenVersion: 1,
  shape: 'openai' as const,
  totalItems: 1,
  inputId: randomUUID(),
  customIdsId: null,
  anthropicVersion: null,
  anthropicBeta: null,
  maxAttempts: 1,
  onLimit: 'fail' as const,
  completionWindowSeconds: null,
});

test('the attribution of a batch is kept beside it and outlives it', async () => {
  const id = uuidv7();
  await insertBatch(database.db, newBatch(id));
  await rows('delete from batches where id = $1', [id]);
  expect(await rows('select * from usage_attributions where batch_id = $1', [id])).toEqual([
    {
      batch_id: id,
      surface: 'relay',
      owner: 'user:u1',
      policy: 'gold',
      project: 'site',
      team: 'web',
      principal_kind: 'user',
      principal_id: 'u1',
      credential_kind: 'token',
      credential_id: 'jti',
      created_at: expect.any(Date),
    },
  ]);
});

test('weeks that nobody prepared are caught, and moved to their partition when it is made', async () => {
  const batchId = uuidv7(Date.now() + 30 * DAY);
  await insertEvents(database.db, [{ batchId, idx: 0, ts: new Date() }]);
  const partition = async () =>
    (await rows('select tableoid::regclass::text as name from usage_events where batch_id = $1', [batchId]))[0]!.name;
  expect(await partition()).toBe('usage_events_default');
  await rows('select ensure_usage_partitions(6)');
  expect(await partition()).toMatch(/^usage_events_\d{8}$/);
  await rows('select ensure_usage_partitions(6)');
});

test('retention drops old weeks with their attribution, and nothing younger or still running', async () => {
  const [old, open, young] = [
    uuidv7(Date.now() - 50 * DAY),
    uuidv7(Date.now() - 49 * DAY),
    uuidv7(Date.now() - 20 * DAY),
  ];
  await insertBatch(database.db, newBatch(open!));
  for (const id of [old, open, young]) {
    if (id !== open) await insertOwner(database.db, id!, { owner: 'kept' });
    await insertEvents(database.db, [{ batchId: id!, idx: 0, ts: new Date() }]);
  }
  await maintainUsagePartitions(database.db, 30);
  const left = async (table: string) =>
    (await rows(`select batch_id from ${table} where batch_id = any($1::uuid[]) order by 1`, [[old, open, young]])).map(
      (row) => row.batch_id,
    );
  expect(await left('usage_events')).toEqual([young]);
  expect(await left('usage_attributions')).toEqual([open, young]);
  await maintainUsagePartitions(database.db, 0);
  expect(await left('usage_events')).toEqual([young]);
});
