import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { type EventDocument, usageEvents } from '../../../lib/usage/events.ts';
import { usageSummary, usageTimeseries } from '../../../lib/usage/figures.ts';
import { parseFilter } from '../../../lib/usage/query.ts';
import { batchUsage } from '../../../lib/usage/sums.ts';
import { countDurations } from '../../../lib/usage/usage-durations.sql.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { type EventFixture, insertEvents, insertOwner } from '../../support/usage-events.ts';

const MINUTE = 60_000;
// A whole minute some time ago, so that buckets are known and nothing depends on when the test runs.
const START = Math.floor(Date.now() / MINUTE) * MINUTE - 30 * MINUTE;
const at = (ms: number) => new Date(START + ms);
const ANN = uuidv7(START - 2000);
const BOB = uuidv7(START - 1000);
const NONE = uuidv7(START - 500);

const chat = {
  requestedModel: 'fast',
  model: 'gpt-4o',
  provider: 'openai',
  host: 'openai',
  hostKey: 'openai-1',
  adapter: 'openai',
  pricing: 'gpt-4o',
  resolvedVia: 'alias',
} as const;
const claude = {
  requestedModel: 'claude',
  model: 'claude',
  provider: 'anthropic',
  host: 'anthropic',
  hostKey: 'a-1',
  adapter: 'anthropic',
  pricing: null,
  resolvedVia: 'name',
} as const;

const EVENTS: EventFixture[] = [
  {
    batchId: ANN,
    idx: 0,
    ts: at(0),
    durationMs: 100,
    route: chat,
    finishReason: 'stop',
    tokens: { input: 10, output: 5 },
    costNanos: 75_000n,
    instance: 'one',
  },
  {
    batchId: ANN,
    idx: 1,
    ts: at(1),
    durationMs: 300,
    route: chat,
    finishReason: 'length',
    tokens: { input: 20, output: 7, cache_read: 4 },
    costNanos: 120_000n,
    instance: 'two',
    attempts: 2,
  },
  {
    batchId: ANN,
    idx: 2,
    ts: at(MINUTE),
    durationMs: 200,
    route: chat,
    status: 400,
    errorKind: 'upstream_error',
    errorMessage: 'upstream status 400',
  },
  {
    batchId: ANN,
    idx: 3,
    ts: at(2 * MINUTE),
    durationMs: 0,
    startedAt: null,
    status: 0,
    attempts: 0,
    errorKind: 'cancelled',
  },
  { batchId: BOB, idx: 0, ts: at(1), durationMs: 50, route: claude, finishReason: 'end_turn', tokens: { input: 1 } },
  {
    batchId: BOB,
    idx: 1,
    ts: at(5 * MINUTE),
    durationMs: 60,
    route: claude,
    status: 529,
    errorKind: 'upstream_error',
    errorMessage: 'upstream status 529',
  },
];
/** Newest first; of the same moment the larger id first. */
const NEWEST_FIRST = ['bob 1', 'ann 3', 'ann 2', 'bob 0', 'ann 1', 'ann 0'];

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
  await insertOwner(database.db, ANN, {
    owner: 'hash-of-ann',
    policy: 'gold',
    project: 'site',
    team: 'web',
    principalKind: 'user',
    principalId: 'u-ann',
    credentialKind: 'key',
    credentialId: 'key-ann',
  });
  await insertOwner(database.db, BOB, {
    owner: 'user:bob',
    policy: 'silver',
    credentialKind: 'token',
    credentialId: 'jti-bob',
  });
  await insertEvents(database.db, EVENTS);
});

afterAll(() => database.close());

const nameOf = (event: EventDocument) => `${event.batch_id === ANN ? 'ann' : 'bob'} ${event.batch_idx}`;
const ask = (query: string, owner: string | null = null) => ({ query: new URLSearchParams(query), owner });
const found = async (query: string, owner: string | null = null) =>
  (await usageEvents(database.db, ask(query, owner))).events.map(nameOf);

describe('events', () => {
  test('an event shows what happened, by name, and nothing of what did not', async () => {
    const { events } = await usageEvents(database.db, ask(`request_id=${ANN}-0000000001`));
    expect(events).toEqual([
      {
        request_id: `${ANN}-0000000001`,
        batch_id: ANN,
        batch_idx: 1,
        source: 'batch',
        ts: at(1).toISOString(),
        status: 200,
        duration_ms: 300,
        timing: {
          start: at(1).toISOString(),
          response_start: at(11).toISOString(),
          response_end: at(91).toISOString(),
        },
        attempts: 2,
        finish_reason: 'length',
        error_kind: null,
        error_message: null,
        requested_model: 'fast',
        model: 'gpt-4o',
        provider: 'openai',
        host: 'openai',
        host_key: 'openai-1',
        policy: 'gold',
        project: 'site',
        team: 'web',
        principal_kind: 'user',
        principal_id: 'u-ann',
        credential_kind: 'key',
        credential_id: 'key-ann',
        relay_key_hash: 'hash-of-ann',
        adapter: 'openai',
        tokens: { input: 20, output: 7, cache_read: 4 },
        cost_nanos: 120_000,
        cost_breakdown: { input: 120_000 },
        pricing: 'gpt-4o',
        resolved_via: 'alias',
        instance: 'two',
      },
    ]);
    const [unsent] = (await usageEvents(database.db, ask('error_kind=cancelled'))).events;
    expect(unsent).toMatchObject({
      status: 0,
      tokens: {},
      model: null,
      timing: { start: null, response_start: null, response_end: null },
    });
    expect(unsent).not.toHaveProperty('cost_nanos');
    expect(unsent).not.toHaveProperty('cost_breakdown');
  });

  test('come newest first', async () => {
    expect(await found('')).toEqual(NEWEST_FIRST);
  });

  test.each<[string, string[]]>([
    ['source=batch', NEWEST_FIRST],
    ['source=live', []],
    [`request_id=${BOB}-0000000001`, ['bob 1']],
    [`batch_id=${BOB}`, ['bob 1', 'bob 0']],
    ['batch_id=unknown', []],
    ['batch_idx=3&batch_idx=1', ['bob 1', 'ann 3', 'ann 1']],
    [`ts=${at(1).toISOString()}`, ['bob 0', 'ann 1']],
    ['status=400&status=529', ['bob 1', 'ann 2']],
    ['status_class=2xx', ['bob 0', 'ann 1', 'ann 0']],
    ['status_class=0&status_class=5xx', ['bob 1', 'ann 3']],
    ['status_min=400', ['bob 1', 'ann 2']],
    ['status_min=1&status_max=400', ['ann 2', 'bob 0', 'ann 1', 'ann 0']],
    ['error=true', ['bob 1', 'ann 3', 'ann 2']],
    ['error=false', ['bob 0', 'ann 1', 'ann 0']],
    ['error=false&error=true', NEWEST_FIRST],
    ['duration_ms=50&duration_ms=60', ['bob 1', 'bob 0']],
    ['attempts=2', ['ann 1']],
    ['finish_reason=stop&finish_reason=end_turn', ['bob 0', 'ann 0']],
    ['error_kind=upstream_error', ['bob 1', 'ann 2']],
    ['error_message=upstream%20status%20400', ['ann 2']],
    ['requested_model=fast', ['ann 2', 'ann 1', 'ann 0']],
    ['model=claude', ['bob 1', 'bob 0']],
    ['provider=anthropic&provider=openai', ['bob 1', 'ann 2', 'bob 0', 'ann 1', 'ann 0']],
    ['host=anthropic', ['bob 1', 'bob 0']],
    ['host_key=openai-1', ['ann 2', 'ann 1', 'ann 0']],
    ['adapter=openai', ['ann 2', 'ann 1', 'ann 0']],
    ['pricing=gpt-4o', ['ann 2', 'ann 1', 'ann 0']],
    ['resolved_via=name', ['bob 1', 'bob 0']],
    ['policy=silver', ['bob 1', 'bob 0']],
    ['project=site', ['ann 3', 'ann 2', 'ann 1', 'ann 0']],
    ['team=web&team=x', ['ann 3', 'ann 2', 'ann 1', 'ann 0']],
    ['principal_kind=user', ['ann 3', 'ann 2', 'ann 1', 'ann 0']],
    ['principal_id=u-ann', ['ann 3', 'ann 2', 'ann 1', 'ann 0']],
    ['credential_kind=token', ['bob 1', 'bob 0']],
    ['credential_id=jti-bob', ['bob 1', 'bob 0']],
    ['relay_key_hash=user:bob', ['bob 1', 'bob 0']],
    ['cost_nanos=75000', ['ann 0']],
    ['instance=one', ['ann 0']],
    ['model=gpt-4o&status=200&finish_reason=length', ['ann 1']],
    ['model=%00', []],
    [`from=${at(1).toISOString()}&to=${at(MINUTE).toISOString()}`, ['bob 0', 'ann 1']],
    ['since=1s', []],
  ])('%s finds what it says and nothing else', async (query, expected) => {
    expect(await found(query)).toEqual(expected);
  });

  test('of one owner are never another', async () => {
    expect(await found('', 'user:bob')).toEqual(['bob 1', 'bob 0']);
    expect(await found('relay_key_hash=hash-of-ann', 'user:bob')).toEqual([]);
    expect(await found(`batch_id=${ANN}`, 'user:bob')).toEqual([]);
    expect(await found('', 'nobody')).toEqual([]);
  });

  test('a bad cursor is refused by name', async () => {
    for (const cursor of ['', 'x', Buffer.from('1 2 3').toString('base64url')]) {
      await expect(usageEvents(database.db, ask(`cursor=${cursor}`))).rejects.toMatchObject({
        code: 'invalid_value',
        param: 'cursor',
      });
    }
    for (const limit of ['0', '10001', 'x', '1.5']) {
      await expect(usageEvents(database.db, ask(`limit=${limit}`))).rejects.toMatchObject({ param: 'limit' });
    }
  });
});

describe('pages', () => {
  let own: TestDatabase;
  beforeAll(async () => {
    own = await createTestDatabase();
  });
  afterAll(() => own.close());

  test('neither repeat nor miss an event while others are written', async () => {
    const first = uuidv7(START - 3000);
    const here = Array.from({ length: 60 }, (_, idx) => ({ batchId: first, idx, ts: at(Math.floor(idx / 4)) }));
    await insertEvents(own.db, here);
    const seen: number[] = [];
    let cursor: string | null = '';
    let pages = 0;
    while (cursor !== null) {
      const query: string = `limit=7${cursor === '' ? '' : `&cursor=${cursor}`}`;
      const page = await usageEvents(own.db, ask(query));
      seen.push(...page.events.filter((event) => event.batch_id === first).map((event) => event.batch_idx));
      cursor = page.next_cursor;
      pages++;
      const fresh = uuidv7();
      await insertEvents(
        own.db,
        [0, 1, 2].map((idx) => ({ batchId: fresh, idx, ts: new Date() })),
      );
    }
    expect(seen).toEqual(here.map(({ idx }) => idx).reverse());
    expect(pages).toBe(9);
  });

  test('the last one has no cursor, however full it is', async () => {
    const from = at(20 * MINUTE);
    const batchId = uuidv7(START);
    await insertEvents(
      own.db,
      [0, 1].map((idx) => ({ batchId, idx, ts: from })),
    );
    const query = `from=${from.toISOString()}&to=${new Date(from.getTime() + 1).toISOString()}&limit=2`;
    const page = await usageEvents(own.db, ask(query));
    expect(page.events.map((event) => event.batch_idx)).toEqual([1, 0]);
    expect(page.next_cursor).toBeNull();
  });
});

describe('summary', () => {
  const summary = async (query: string, owner: string | null = null) =>
    (await usageSummary(database.db, ask(query, owner))).rows;

  test('counts everything, and money and tokens of what was answered', async () => {
    expect(await summary('')).toEqual([
      {
        group: { source: 'batch' },
        requests: 6,
        errors: 3,
        tokens: { input: 31, output: 12, cache_read: 4 },
        cost_nanos: 195_000,
        unpriced: 3,
        duration_ms: { avg: 142, p50: 100, p95: 300, p99: 300, max: 300 },
      },
    ]);
  });

  test('groups by what is asked for, most requests first', async () => {
    const rows = await summary('group_by=model&group_by=status&group_by=error_kind');
    expect(rows.map(({ group, requests, cost_nanos, unpriced }) => [group, requests, cost_nanos, unpriced])).toEqual([
      [{ model: 'gpt-4o', status: 200, error_kind: null }, 2, 195_000, 0],
      [{ model: 'claude', status: 529, error_kind: 'upstream_error' }, 1, null, 1],
      [{ model: 'claude', status: 200, error_kind: null }, 1, null, 1],
      [{ model: 'gpt-4o', status: 400, error_kind: 'upstream_error' }, 1, null, 1],
      [{ model: null, status: 0, error_kind: 'cancelled' }, 1, 0, 0],
    ]);
    expect(rows[4]!.duration_ms).toEqual({ avg: null, p50: null, p95: null, p99: null, max: null });
  });

  test.each<[string, [unknown, number][]]>([
    ['source', [['batch', 6]]],
    [
      'model',
      [
        ['gpt-4o', 3],
        ['claude', 2],
        [null, 1],
      ],
    ],
    [
      'host',
      [
        ['openai', 3],
        ['anthropic', 2],
        [null, 1],
      ],
    ],
    [
      'provider',
      [
        ['openai', 3],
        ['anthropic', 2],
        [null, 1],
      ],
    ],
    [
      'policy',
      [
        ['gold', 4],
        ['silver', 2],
      ],
    ],
    [
      'project',
      [
        ['site', 4],
        [null, 2],
      ],
    ],
    [
      'team',
      [
        ['web', 4],
        [null, 2],
      ],
    ],
    [
      'principal_id',
      [
        ['u-ann', 4],
        [null, 2],
      ],
    ],
    [
      'credential_id',
      [
        ['key-ann', 4],
        ['jti-bob', 2],
      ],
    ],
    [
      'batch_id',
      [
        [ANN, 4],
        [BOB, 2],
      ],
    ],
    [
      'error_kind',
      [
        [null, 3],
        ['upstream_error', 2],
        ['cancelled', 1],
      ],
    ],
    [
      'finish_reason',
      [
        [null, 3],
        ['end_turn', 1],
        ['length', 1],
        ['stop', 1],
      ],
    ],
    [
      'status',
      [
        [200, 3],
        [0, 1],
        [400, 1],
        [529, 1],
      ],
    ],
  ])('groups by %s', async (dimension, expected) => {
    const rows = await summary(`group_by=${dimension}`);
    expect(rows.map(({ group, requests }) => [group[dimension], requests])).toEqual(expected);
  });

  test('takes the filters and the owner of events', async () => {
    expect((await summary('status_class=2xx&model=gpt-4o'))[0]).toMatchObject({
      requests: 2,
      errors: 0,
      cost_nanos: 195_000,
    });
    expect((await summary('', 'user:bob'))[0]).toMatchObject({
      requests: 2,
      tokens: { input: 1 },
      cost_nanos: null,
      unpriced: 2,
    });
    expect(await summary('', 'nobody')).toEqual([]);
    expect(await summary('since=1s')).toEqual([]);
  });

  test('says which period it is about', async () => {
    const period = { from: at(0).toISOString(), to: at(MINUTE).toISOString() };
    expect(await usageSummary(database.db, ask(new URLSearchParams(period).toString()))).toMatchObject(period);
  });

  test('an unknown dimension is refused by name', async () => {
    for (const name of ['host_key', 'ts', '', 'model,host']) {
      await expect(usageSummary(database.db, ask(`group_by=${name}`))).rejects.toMatchObject({
        code: 'invalid_value',
        param: 'group_by',
      });
    }
  });
});

describe('timeseries', () => {
  test('puts events into buckets that are aligned to the epoch', async () => {
    const { rows, interval } = await usageTimeseries(database.db, ask('interval=1m'));
    expect(interval).toBe('1m');
    expect(rows.map(({ bucket, requests, errors, unpriced }) => [bucket, requests, errors, unpriced])).toEqual([
      [at(0).toISOString(), 3, 0, 1],
      [at(MINUTE).toISOString(), 1, 1, 1],
      [at(2 * MINUTE).toISOString(), 1, 1, 0],
      [at(5 * MINUTE).toISOString(), 1, 1, 1],
    ]);
    expect(rows[0]).toMatchObject({ cost_nanos: 195_000, tokens: { input: 31 }, duration_ms: { p50: 100, max: 300 } });
    expect(rows[0]).not.toHaveProperty('group');
    const [day] = (await usageTimeseries(database.db, ask('interval=1d'))).rows;
    expect(Date.parse(day!.bucket) % 86_400_000).toBe(0);
  });

  test('with a group has a row for each bucket and group', async () => {
    const { rows } = await usageTimeseries(database.db, ask('interval=1m&group_by=policy', 'user:bob'));
    expect(rows.map(({ group, bucket, requests }) => [group, bucket, requests])).toEqual([
      [{ policy: 'silver' }, at(0).toISOString(), 1],
      [{ policy: 'silver' }, at(5 * MINUTE).toISOString(), 1],
    ]);
  });

  test('needs an interval that gives at most 5,000 buckets', async () => {
    const refused = (query: string) => expect(usageTimeseries(database.db, ask(query))).rejects;
    await refused('').toMatchObject({ code: 'missing_required_parameter', param: 'interval' });
    for (const bad of ['', '1', '0s', '1w', '-1s'])
      await refused(`interval=${bad}`).toMatchObject({ code: 'invalid_value', param: 'interval' });
    const from = new Date(START - (START % 1000)).toISOString();
    const period = (seconds: number) => `from=${from}&to=${new Date(Date.parse(from) + seconds * 1000).toISOString()}`;
    await refused(`interval=1s&${period(5001)}`).toMatchObject({ code: 'invalid_value', param: 'interval' });
    expect((await usageTimeseries(database.db, ask(`interval=1s&${period(5000)}`))).rows.length).toBeGreaterThan(0);
  });
});

describe('sums', () => {
  test('of a batch are those of its events', async () => {
    expect(await batchUsage(database.db, ANN)).toEqual({
      tokens: { input: 30, output: 12, cache_read: 4 },
      cost_nanos: 195_000,
      unpriced: 1,
    });
    expect(await batchUsage(database.db, BOB)).toEqual({ tokens: { input: 1 }, cost_nanos: null, unpriced: 2 });
    expect(await batchUsage(database.db, NONE)).toEqual({ tokens: {}, cost_nanos: 0, unpriced: 0 });
  });

  test('beyond 2^53 are written digit by digit', async () => {
    const batchId = uuidv7();
    const ts = new Date(START - 10 * 60 * MINUTE);
    const large = 2 ** 53 - 1;
    await insertEvents(
      database.db,
      [0, 1, 2].map((idx) => ({ batchId, idx, ts, tokens: { input: large }, costNanos: 2n ** 62n - 1n })),
    );
    const text = JSON.stringify(await batchUsage(database.db, batchId));
    expect(text).toBe(`{"tokens":{"input":${3n * BigInt(large)}},"cost_nanos":${3n * (2n ** 62n - 1n)},"unpriced":0}`);
    const events = await usageEvents(database.db, ask(`batch_id=${batchId}&since=20h`));
    expect(JSON.stringify(events)).toContain(`"cost_nanos":${2n ** 62n - 1n},`);
    const summary = await usageSummary(database.db, ask(`batch_id=${batchId}&since=20h`));
    expect(JSON.stringify(summary)).toContain(`"cost_nanos":${3n * (2n ** 62n - 1n)},`);
  });
});

test('durations of very many events are rounded down by less than 0.8 %', async () => {
  const batchId = uuidv7();
  const durations = [0, 511, 512, 2047, 2048, 8191, 8192, 32_767, 32_768, 131_071, 131_072, 300_001, 900_000];
  const events = durations.map((durationMs, idx) => ({ batchId, idx, ts: new Date(START - 3_600_000), durationMs }));
  await insertEvents(database.db, events);
  const filter = parseFilter(ask(`batch_id=${batchId}&since=20h`), Date.now(), []);
  const histogram = async (exact: boolean) => {
    const [row] = await countDurations(database.db, filter, [], null, exact);
    const pairs = JSON.parse(row!.histogram) as number[];
    return pairs.filter((_, i) => i % 2 === 0).sort((a, b) => a - b);
  };
  expect(await histogram(true)).toEqual(durations);
  const rounded = await histogram(false);
  expect(rounded).toHaveLength(durations.length);
  for (const [i, value] of rounded.entries()) {
    expect(value).toBeLessThanOrEqual(durations[i]!);
    expect(value).toBeGreaterThanOrEqual(durations[i]! * 0.992);
  }
});
