import { createLog } from '../lib/base/log.ts';
import { createDb } from '../lib/db/database.ts';
import { price } from '../lib/usage/cost.ts';
import { usageEvents } from '../lib/usage/events.ts';
import { usageSummary, usageTimeseries } from '../lib/usage/figures.ts';
import { measure } from '../lib/usage/measure.ts';
import { batchUsage } from '../lib/usage/sums.ts';
import { DIMENSIONS } from '../lib/usage/usage-figures.sql.ts';
import type { Bed, BenchDatabase } from './support/bed.ts';
import { type Figure, format, median, timed } from './support/figure.ts';

const BATCHES = 200;
const EVENTS = 1_000_000;
const ROUNDS = 5;
const CALLS = 200_000;

/** Reports over 1,000,000 events of the last hour, beside a mere count; and the cost of one item's accounting. */
export async function benchUsage(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  await fill(database);
  const db = createDb({
    dsn: database.dsn,
    max: 2,
    prepared: true,
    applicationName: 'bench',
    log: createLog('silent'),
  });
  bed.defer(() => db.close());
  const rounds = async (work: () => Promise<unknown>) => {
    const times: number[] = [];
    for (let i = 0; i < ROUNDS; i++) times.push(await timed(work));
    return median(times);
  };
  const ask = (query: string) => ({ query: new URLSearchParams(query), owner: null });
  const count = await rounds(() =>
    database.sql('select count(*) from usage_events where ts > now() - interval $$1 hour$$'),
  );
  const [one] = await database.sql<{ id: string }>('select batch_id as id from usage_attributions limit 1');
  const by = (...names: string[]) => names.map((name) => `group_by=${name}`).join('&');
  const summaries: [name: string, query: string, owner?: string][] = [
    ['summary of 1,000,000 events', ''],
    ...DIMENSIONS.map((name): [string, string] => [`summary by ${name}`, by(name)]),
    ['summary by policy and status', by('policy', 'status')],
    ['summary by model, provider and host', by('model', 'provider', 'host')],
    ['summary by model, policy, status and finish_reason', by('model', 'policy', 'status', 'finish_reason')],
    ['summary by all 12, 4,600 rows', by(...DIMENSIONS)],
    ['summary of one provider by policy', `provider=openai&${by('policy')}`],
    ["summary by model, a caller's own", by('model'), 'owner-3'],
  ];
  const series: typeof summaries = [
    ['timeseries by minute', 'interval=1m'],
    ['timeseries by second', 'interval=1s'],
    ['timeseries by minute and provider', `interval=1m&${by('provider')}`],
    ['timeseries by minute and model', `interval=1m&${by('model')}`],
    ['timeseries by minute, policy and status', `interval=1m&${by('policy', 'status')}`],
    ['timeseries by day and policy', `interval=1d&${by('policy')}`],
    ['timeseries by minute and batch, 10,200 rows', `interval=1m&${by('batch_id')}`],
    ["timeseries by minute and model, a caller's own", `interval=1m&${by('model')}`, 'owner-3'],
  ];
  const reports: [name: string, work: () => Promise<unknown>, atMost?: number][] = [
    ...summaries.map(([name, query, owner]): (typeof reports)[number] => [
      name,
      () => usageSummary(db, { ...ask(query), owner: owner ?? null }),
      1000,
    ]),
    ...series.map(([name, query, owner]): (typeof reports)[number] => [
      name,
      () => usageTimeseries(db, { ...ask(query), owner: owner ?? null }),
      1000,
    ]),
    ['newest 100 events', () => usageEvents(db, ask(''))],
    ['usage of one batch of 5,000', () => batchUsage(db, one!.id)],
  ];
  const figures: Figure[] = [];
  for (const [name, work, atMost] of reports) {
    figures.push({
      name,
      value: await rounds(work),
      unit: 'ms',
      comparedWith: `counting the events ${format(count)} ms`,
      ...(atMost === undefined ? {} : { target: { atMost } }),
    });
  }
  return [...figures, ...accounting()];
}

const ANSWER = {
  id: 'chatcmpl-1',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Yes.' }, finish_reason: 'stop' }],
  usage: {
    prompt_tokens: 1200,
    completion_tokens: 55,
    prompt_tokens_details: { cached_tokens: 1024, audio_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: 12, audio_tokens: 0 },
  },
};
const PRICING = {
  id: '1',
  name: 'p',
  currency: 'USD',
  enabled: true,
  rates: [
    { meter: 'tokens.input', unit: 'per_million' as const, amount: 2.5 },
    { meter: 'tokens.output', unit: 'per_million' as const, amount: 10 },
    { meter: 'tokens.cache_read', unit: 'per_million' as const, amount: 1.25 },
  ],
};

/** Tokens, finish reason and cost of one answer. */
function accounting(): Figure[] {
  const text = JSON.stringify(ANSWER);
  const perCall = (work: () => unknown) => {
    const times: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const start = performance.now();
      for (let i = 0; i < CALLS; i++) work();
      times.push(((performance.now() - start) / CALLS) * 1e6);
    }
    return median(times);
  };
  const parse = perCall(() => JSON.parse(text));
  const value = perCall(() => price(PRICING, measure('openai', ANSWER).tokens!));
  return [
    { name: 'tokens and cost of an answer', value, unit: 'ns', comparedWith: `JSON.parse of it ${format(parse)} ns` },
  ];
}

/** Events as a day's work leaves them: 20 routes, durations from 0.4 to 20 s, some cancelled, some refused upstream. */
async function fill({ sql }: BenchDatabase): Promise<void> {
  await sql(`insert into usage_routes
    select md5('r' || n)::uuid, 'alias-' || n, 'model-' || n % 8, case n % 2 when 0 then 'openai' else 'anthropic' end,
      'host-' || n % 3, 'key-' || n, 'openai', 'pricing', 'alias'
    from generate_series(0, 19) n`);
  await sql(
    `insert into usage_attributions
      select overlay(uuidv7_floor(now() - interval '55 minutes' + n * interval '15 seconds')::text placing lpad(to_hex(n), 12, '0')
          from 25)::uuid,
        'relay', 'owner-' || n % 20, 'policy-' || n % 5, 'project-' || n % 7, 'team-' || n % 3, 'user', 'user-' || n % 20, 'key',
        'key-' || n % 20, now()
      from generate_series(1, $1::int) n`,
    [BATCHES],
  );
  await sql(
    `insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, started_at, response_start_ms,
        response_end_ms, error_kind, finish_reason, route, instance, tokens_input, tokens_output, tokens_cache_read,
        tokens_reasoning, cost_nanos, cost_breakdown)
      select a.batch_id, i, now() - interval '54 minutes' + (i * $2::float8 / $1) * interval '1 second',
        case i % 50 when 0 then 0 when 1 then 400 else 200 end, 1, d, case when i % 50 > 0 then now() end, d - 10, d,
        case i % 50 when 0 then 'cancelled' when 1 then 'upstream_error' end, case when i % 50 > 1 then 'stop' end,
        case when i % 50 > 0 then md5('r' || i % 20)::uuid end, 'main', case when i % 50 > 1 then 1000 + i end,
        case when i % 50 > 1 then 100 + i % 100 end, case when i % 5 = 2 then 512 end, case when i % 7 = 2 then 50 end,
        case when i % 50 > 1 then 2500000 + i end, case when i % 50 > 1 then '{"input":2500000,"output":1000000}'::jsonb end
      from usage_attributions a, generate_series(1, $1::int) i,
        lateral (select (200 + exp(random() * 4.6) * 200)::int as d offset 0 * i) x`,
    [EVENTS / BATCHES, 3000],
  );
  await sql('vacuum analyze usage_events');
}
