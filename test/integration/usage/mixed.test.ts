import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Service, type SubmitOptions, startService } from '../../support/service.ts';

// A batch of everything, in each of the three shapes. The usage events are compared with the requests and answers of
// the upstream, and their costs against a calculation of this test's own.

const RATES = { input: 3.75, output: 15, cache_read: 0.3, cache_creation: 4.5, reasoning: 20 };
const PARTS_OF_OUTPUT = ['reasoning'];

const CATALOG = `---
kind: Pricing
metadata: {name: mixed}
spec:
  rates:
${Object.entries(RATES)
  .map(([part, amount]) => `    - {meter: tokens.${part}, unit: per_million, amount: ${amount}}`)
  .join('\n')}
---
kind: Model
metadata: {name: mixed}
spec: {provider: test}
${['openai', 'openai_responses', 'anthropic']
  .map(
    (adapter) => `---
kind: Binding
metadata: {name: mixed-${adapter.replace('_', '-')}}
spec: {model: mixed, host: up, adapter: ${adapter}, pricing: mixed}
`,
  )
  .join('')}---
kind: RateLimit
metadata: {name: two}
spec: {rules: [{meter: requests, amount: 2, window: 3600, strategy: fixed-window}]}
---
kind: Policy
metadata: {name: limited}
spec: {models: [test], rateLimit: two}
---
kind: Key
metadata: {name: eve}
spec: {policy: limited, valueFrom: {kind: env, env: TEST_KEY_EVE}}
`;

type Shape = NonNullable<SubmitOptions['shape']>;

interface Counts {
  input: number;
  output: number;
  cache_read: number;
  cache_creation: number;
  reasoning: number;
}

/** The shape's own usage object for these disjoint counts, as its API documents it. */
function usageObject(shape: Shape, c: Counts): object {
  if (shape === 'anthropic') {
    return {
      input_tokens: c.input,
      output_tokens: c.output,
      cache_read_input_tokens: c.cache_read,
      cache_creation_input_tokens: c.cache_creation,
    };
  }
  const whole = c.input + c.cache_read + c.cache_creation;
  const cached = { cached_tokens: c.cache_read, cache_write_tokens: c.cache_creation };
  const reasoning = { reasoning_tokens: c.reasoning };
  return shape === 'openai'
    ? {
        prompt_tokens: whole,
        completion_tokens: c.output,
        prompt_tokens_details: cached,
        completion_tokens_details: reasoning,
      }
    : {
        input_tokens: whole,
        output_tokens: c.output,
        input_tokens_details: cached,
        output_tokens_details: reasoning,
      };
}

/** Nano-USD by the formula of "Cost" in docs/spec/gateway-rules.md, in bigint, part by part. */
function costOf(counts: Partial<Counts>): bigint {
  const billed = { ...counts };
  for (const part of PARTS_OF_OUTPUT) {
    billed.output = (billed.output ?? 0) - (billed[part as keyof Counts] ?? 0);
  }
  return Object.entries(billed).reduce((sum, [part, count]) => {
    const rate = BigInt(Math.round(RATES[part as keyof Counts] * 1e9));
    const n = BigInt(count);
    return sum + n * (rate / 1_000_000n) + (n * (rate % 1_000_000n)) / 1_000_000n;
  }, 0n);
}

const FIELDS: Record<Shape, string> = { openai: 'choices', openai_responses: 'output', anthropic: 'content' };
const SHAPES = Object.keys(FIELDS) as Shape[];

let service: Service;
beforeAll(async () => {
  service = await startService({
    catalog: CATALOG,
    env: { RELAY_BATCH_ITEM_TIMEOUT_S: '3', RELAY_BATCH_CONCURRENCY: '16' },
  });
});
afterAll(() => service.close());

/** Answers as each item asks in its `do` member. */
function obey(shape: Shape): void {
  service.upstream.answerWith(({ body }, response) => {
    const wish = JSON.parse(body.toString()).do as { status?: number; text?: string; counts?: Counts; hang?: true };
    if (wish.hang) return;
    const good = () => JSON.stringify({ [FIELDS[shape]]: [], usage: usageObject(shape, wish.counts!) });
    response.writeHead(wish.status ?? 200, { 'content-type': 'application/json' });
    response.end(wish.text ?? (wish.counts ? good() : '{"error":{"message":"as asked"}}'));
  });
}

interface Event {
  batch_idx: number;
  status: number;
  error_kind: string | null;
  attempts: number;
  tokens: Partial<Counts>;
  cost_nanos?: number;
  source: string;
}

async function eventsOf(id: string, as = 'ann'): Promise<Event[]> {
  const path = `/v1/usage/events?batch_id=${id}&limit=1000`;
  const { json } = await service.call('node', { path, as });
  return (json.events as Event[]).sort((a, b) => a.batch_idx - b.batch_idx);
}

/** How often the upstream received the item with this tag. */
const received = (tag: string) =>
  service.upstream.received.filter(({ body }) => JSON.parse(body.toString()).tag === tag).length;

test.each(SHAPES)(
  'a mixed batch of %s: an event an item, as the upstream saw and answered it, to the nano-dollar',
  async (shape) => {
    service.upstream.forget();
    obey(shape);
    const counts = Array.from(
      { length: 25 },
      (_, i): Counts => ({
        input: 7 + 1_003 * i,
        output: 11 + 97 * i,
        cache_read: i % 3 === 0 ? 0 : 101 * i,
        cache_creation: i % 4 === 0 ? 53 * i : 0,
        reasoning: shape === 'anthropic' || i % 2 === 0 ? 0 : 3 * i,
      }),
    );
    const wishes: { model?: string; do: object; kind: string | null; status: number; more?: object }[] = [
      ...counts.map((c) => ({ model: 'mixed', do: { counts: c }, kind: null, status: 200 })),
      { model: 'mixed', do: { status: 400 }, kind: 'upstream_error', status: 400 },
      { model: 'mixed', do: { status: 503 }, kind: 'upstream_error', status: 503 },
      { model: 'mixed', do: { status: 429 }, kind: 'upstream_error', status: 429 },
      { model: 'mixed', do: { text: 'no json' }, kind: 'bad_response', status: 200 },
      { model: 'mixed', do: { text: 'null' }, kind: 'bad_response', status: 200 },
      { model: 'mixed', do: { text: '{"error":{"code":429}}' }, kind: 'bad_response', status: 200 },
      { model: 'mixed', do: { hang: true }, kind: 'timeout', status: 0 },
      { model: 'nope', do: {}, kind: 'model_not_found', status: 0 },
      { model: 'off', do: {}, kind: 'model_disabled', status: 0 },
      { model: 'foreign', do: {}, kind: 'model_not_allowed', status: 0 },
      { model: 'nowhere', do: {}, kind: 'no_host_binding', status: 0 },
      { do: {}, kind: 'invalid_request', status: 0 },
      { model: 'mixed', do: {}, kind: 'invalid_request', status: 0, more: { stream: true } },
      ...(shape === 'openai'
        ? [
            { model: 'keyless', do: {}, kind: 'no_keys', status: 0 },
            { model: 'lost', do: {}, kind: 'upstream_unreachable', status: 0 },
          ]
        : [{ model: 'chat-only', do: {}, kind: 'cross_shape', status: 0 }]),
    ];
    const items = wishes.map(({ model, do: wish, more }, i) => ({
      ...(model === undefined ? {} : { model }),
      do: wish,
      tag: `${shape}-${i}`,
      ...more,
    }));
    const { id, results } = await service.run('node', items, { shape });
    expect(results.map(({ state }) => state)).toEqual(
      wishes.map(({ kind }) => (kind === null ? 'completed' : 'discarded')),
    );

    const events = await eventsOf(id);
    expect(events.map(({ batch_idx }) => batch_idx)).toEqual(wishes.map((_, i) => i));
    for (const [i, event] of events.entries()) {
      const { kind, status, model } = wishes[i]!;
      expect(event, `item ${i}`).toMatchObject({ error_kind: kind, status, source: 'batch' });
      // A host that refuses its dials receives nothing, and they are one attempt all the same.
      expect(event.attempts, `item ${i}`).toBe(model === 'lost' ? 1 : received(`${shape}-${i}`));
      if (kind !== null) {
        expect(event.tokens).toEqual({});
        expect('cost_nanos' in event).toBe(false);
        continue;
      }
      const sent = Object.fromEntries(Object.entries(counts[i]!).filter(([, n]) => n > 0));
      expect(event.tokens).toEqual(sent);
      expect(BigInt(event.cost_nanos!)).toBe(costOf(sent));
    }

    const total = counts.reduce((sum, c) => sum + costOf(c), 0n);
    const summary = await service.call('node', { path: `/v1/usage/summary?batch_id=${id}`, as: 'ann' });
    const failed = wishes.filter(({ kind }) => kind !== null).length;
    expect(summary.json.rows).toMatchObject([
      { requests: wishes.length, errors: failed, cost_nanos: Number(total), tokens: { input: sum(counts, 'input') } },
    ]);
    const status = await service.call('node', { path: `/v1/batches/${id}?items=false&usage=true`, as: 'ann' });
    expect(status.json.usage).toMatchObject({ cost_nanos: Number(total), tokens: { output: sum(counts, 'output') } });
  },
);

const sum = (counts: readonly Counts[], part: keyof Counts) => counts.reduce((total, c) => total + c[part], 0);

test('items over the limit, cancelled ones and those without a healthy key have their events, unsent and uncosted', async () => {
  service.upstream.answerWith(null);
  const limited = await service.run('node', Array(5).fill({ model: 'any' }), { as: 'eve' });
  const kinds = (await eventsOf(limited.id, 'eve')).map(({ error_kind }) => error_kind);
  expect(kinds).toEqual([null, null, 'rate_limited', 'rate_limited', 'rate_limited']);

  const letGo = service.upstream.hold();
  service.upstream.forget();
  const id = await service.submit('node', Array(40).fill({ model: 'any' }));
  await service.upstream.waitForRequests(16);
  await service.call('node', { method: 'POST', path: `/v1/batches/${id}/cancel`, as: 'ann' });
  await service.finished(id);
  letGo();
  const cancelled = await eventsOf(id);
  expect(cancelled).toHaveLength(40);
  expect(cancelled.every((e) => e.error_kind === 'cancelled' && e.status === 0 && !('cost_nanos' in e))).toBe(true);
  expect(cancelled.reduce((calls, e) => calls + e.attempts, 0)).toBe(service.upstream.received.length);

  service.upstream.failKey('sk-host-one', 401);
  service.upstream.failKey('sk-host-two', 401);
  const first = await service.run('node', [{ model: 'keyed' }]);
  expect(await eventsOf(first.id)).toMatchObject([{ error_kind: 'upstream_error', status: 401, attempts: 2 }]);
  const later = await service.run('node', [{ model: 'keyed' }, { model: 'keyed' }]);
  expect(await eventsOf(later.id)).toMatchObject([
    { error_kind: 'keys_exhausted', status: 0, attempts: 0 },
    { error_kind: 'keys_exhausted', status: 0, attempts: 0 },
  ]);
});

test('a batch that outlives its key has events of kind credential', async () => {
  const letGo = service.upstream.hold();
  service.upstream.forget();
  const id = await service.submit('node', Array(30).fill({ model: 'any' }), { as: 'bob' });
  await service.upstream.waitForRequests(16);
  await service.sql(`update relay_keys set revoked_at = clock_timestamp() where id in
    (select id from catalog_objects where kind = 'Key' and name = 'bob')`);
  await service.sql('update catalog_state set version = version + 1');
  await service.app.catalogCache.refresh();
  letGo();
  await service.finished(id);
  const events = await service.events(id);
  expect(events).toHaveLength(30);
  const refused = events.filter(({ error_kind }) => error_kind === 'credential');
  expect(refused.length).toBe(30 - service.upstream.received.length);
  expect(refused.length).toBeGreaterThan(0);
});
