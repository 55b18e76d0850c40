import { expect, test } from 'vitest';
import type { Db, Statement } from '../../../lib/db/database.ts';
import { TOKEN_PARTS, type UsageFacts } from '../../../lib/model/usage-event.ts';
import { type CommitGroup, commitOutcomes, type OutcomeRow } from '../../../lib/worker/commit.sql.ts';

const route: UsageFacts['route'] = {
  requestedModel: 'requested-model',
  model: 'model',
  provider: 'provider',
  host: 'host',
  hostKey: 'host-key',
  adapter: 'openai',
  pricing: 'pricing',
  resolvedVia: 'name',
};

/** A row that has another value in every column. */
const row: OutcomeRow = {
  batchId: 'batch-id',
  idx: 1,
  claimNo: 2,
  state: 'discarded',
  error: 'error',
  span: { offset: 3, length: 4, crc: 5 },
  usage: {
    status: 6,
    errorKind: 'timeout',
    errorMessage: 'error-message',
    attempts: 7,
    durationMs: 8,
    startedAt: 1_000,
    responseStartedAt: 1_009,
    responseEndedAt: 1_010,
    finishReason: 'finish-reason',
    route,
    tokens: Object.fromEntries(TOKEN_PARTS.map((part, i) => [part, 100 + i])),
    costNanos: 11n,
    costBreakdown: { input: 12 },
  },
};

const group: CommitGroup = {
  workerId: 'worker-id',
  instance: 'instance',
  segmentId: 'segment-id',
  rows: [row],
  routes: ['route-id'],
  newRoutes: [{ id: 'new-route-id', facts: route }],
};

async function sent(given: CommitGroup): Promise<Statement> {
  let statement: Statement | undefined;
  const rows = [{ committed: 1, finished: null }];
  const db = {
    query: async (one: Statement) => {
      statement = one;
      return { rows };
    },
  } as unknown as Db;
  await commitOutcomes(db, given);
  return statement!;
}

/** The statement's name for each of its arrays, and the value that is sent there. */
function tablesOf({ text, values }: Statement): Record<string, Record<string, unknown>> {
  const tables = [...text.matchAll(/unnest\(([^)]*)\)\s+as\s+(\w+)\(([^)]*)\)/g)].map(([, arrays, name, columns]) => {
    const numbers = [...arrays!.matchAll(/\$(\d+)::/g)].map((one) => Number(one[1]));
    const names = columns!.split(', ');
    expect(names).toHaveLength(numbers.length);
    return [name, Object.fromEntries(names.map((column, i) => [column, values[numbers[i]! - 1]]))] as const;
  });
  return Object.fromEntries(tables);
}

test('the group commit sends every value under the name of its column', async () => {
  const statement = await sent(group);
  expect(tablesOf(statement)).toEqual({
    items: {
      batch_id: '{batch-id}',
      idx: '{1}',
      claim_no: '{2}',
      state: '{discarded}',
      error: '{"error"}',
      out_offset: '{3}',
      out_length: '{4}',
      out_crc: '{5}',
      status: '{6}',
      attempts: '{7}',
      duration_ms: '{8}',
      started_ms: '{1000}',
      response_start_ms: '{9}',
      response_end_ms: '{10}',
      error_kind: '{"timeout"}',
      error_message: '{"error-message"}',
      finish_reason: '{"finish-reason"}',
      route: '{route-id}',
      ...Object.fromEntries(TOKEN_PARTS.map((part, i) => [`tokens_${part}`, `{${100 + i}}`])),
      cost_nanos: '{11}',
      cost_breakdown: '{"{\\"input\\":12}"}',
    },
    new_routes: {
      id: '{new-route-id}',
      requested_model: '{"requested-model"}',
      model: '{"model"}',
      provider: '{"provider"}',
      host: '{"host"}',
      host_key: '{"host-key"}',
      adapter: '{"openai"}',
      pricing: '{"pricing"}',
      resolved_via: '{"name"}',
    },
  });
});

test('the statement uses every parameter that is sent, and no other', async () => {
  const { text, values } = await sent(group);
  const used = new Set([...text.matchAll(/\$(\d+)/g)].map((one) => Number(one[1])));
  expect([...used].sort((a, b) => a - b)).toEqual(values.map((_, i) => i + 1));
  expect(values.slice(0, 4)).toEqual(['worker-id', 'segment-id', 'instance', '{batch-id}']);
});

test('the text of the statement is the same for every group', async () => {
  const other = await sent({
    ...group,
    rows: [row, { ...row, idx: 2, span: null }],
    routes: [null, null],
    newRoutes: [],
  });
  expect(other.text).toBe((await sent(group)).text);
});
