import { describe, expect, test } from 'vitest';
import { systemClock } from '../../../../lib/base/clock.ts';
import { atOnce } from '../../../../lib/base/turns.ts';
import type { BreakerReason } from '../../../../lib/keypool/breaker.ts';
import type { KeyPool } from '../../../../lib/keypool/pool.ts';
import type { BatchContext } from '../../../../lib/model/batch.ts';
import type { Catalog, HostKey, Pricing } from '../../../../lib/model/catalog.ts';
import type { Candidate, RoutePlan } from '../../../../lib/routing/plan.ts';
import type { CallClass, CallResult } from '../../../../lib/upstream/call-result.ts';
import { conclude, type Run, tellsKey } from '../../../../lib/worker/item/conclude.ts';
import type { PreparedItem } from '../../../../lib/worker/item/judge.ts';
import { type Outcome, refused } from '../../../../lib/worker/item/outcome.ts';

const BODY = Buffer.from('{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":2}}');
const NOW = 1_000_000;
const key = { name: 'one', value: 'sk-host-0123456789', breakerKey: 'k1' } as HostKey;
const other = { name: 'two', value: 'fallback-9876543210', breakerKey: 'k2' } as HostKey;
const candidate = {
  binding: { pricing: 'price' },
  host: { name: 'up' },
  adapter: 'openai',
  wireName: 'm-up',
  keys: [key, other],
} as unknown as Candidate;
const anonymous = { name: '', value: null, breakerKey: '' } as HostKey;
const pricing: Pricing = {
  id: 'p',
  name: 'price',
  currency: 'USD',
  enabled: true,
  rates: [
    { meter: 'tokens.input', unit: 'per_million', amount: 1 },
    { meter: 'tokens.output', unit: 'per_million', amount: 1 },
  ],
};

function result(callClass: CallClass, more: Partial<CallResult> = {}): CallResult {
  return {
    class: callClass,
    status: 200,
    body: BODY,
    parsed: JSON.parse(BODY.toString()),
    badReason: null,
    message: null,
    contentType: 'application/json',
    upstreamRequestId: null,
    retryAfterMs: null,
    startedAt: NOW,
    responseStartedAt: NOW + 5,
    responseEndedAt: NOW + 9,
    ...more,
  };
}

interface Given {
  last?: CallResult;
  batch?: Partial<BatchContext>;
  item?: Partial<PreparedItem['item']>;
  aborted?: boolean;
  /** Of the breakers; null for ones that stay open. */
  reopens?: number | null;
  why?: BreakerReason | null;
  probeRefused?: boolean;
  anonymous?: boolean;
  failedKey?: string;
  othersSucceed?: boolean;
  refusal?: Outcome;
  late?: boolean;
}

function concluded(given: Given): Outcome {
  const batch = { id: 'b', surface: 'relay', maxAttempts: 1, onLimit: 'fail', ...given.batch } as BatchContext;
  const item = {
    batch,
    idx: 3,
    claimNo: 1,
    inputOffset: 0,
    inputLength: 2,
    inputCrc: 0,
    attempts: 4,
    rounds: 0,
    waitedMs: 0,
    loadFailures: 0,
    failedKey: null,
    failedRounds: 0,
    failingForMs: null,
    ...given.item,
  };
  const plan = {
    requestedModel: 'm',
    model: { name: 'm', provider: 'test' },
    resolvedVia: 'name',
    candidates: [candidate],
  } as unknown as RoutePlan;
  const run: Run = {
    entry: { item, plan, catalog: { pricings: new Map([['price', pricing]]) } as unknown as Catalog } as PreparedItem,
    calls: given.last ? 2 : 0,
    dialled: given.last !== undefined,
    first: given.last ?? null,
    last: given.last ? { result: given.last, candidate, key: given.anonymous ? anonymous : key } : null,
    deadline: given.late ? 100 : 1000,
    refusal: given.refusal ?? null,
    tellsKey: false,
    probeRefused: given.probeRefused ?? false,
    failedKey: given.failedKey ?? null,
    othersSucceed: given.othersSucceed ?? false,
    charged: [],
  };
  run.tellsKey = atOnce(tellsKey(run));
  const pool = {
    reopening: () => ({ inMs: given.reopens ?? null, reason: given.why ?? 'server_error', hostKey: 'first' }),
  } as unknown as KeyPool;
  const clock = { ...systemClock, monotonic: () => 500 };
  return conclude({ pool, clock, itemTimeoutMs: 300_000, aborted: given.aborted ?? false }, run);
}

test('a success keeps the answer’s bytes, its tokens and their price', () => {
  const outcome = concluded({ last: result('success') });
  expect(outcome).toMatchObject({ kind: 'final', state: 'completed', error: null });
  if (outcome.kind !== 'final') throw new Error();
  expect(outcome.response).toBe(BODY);
  expect(outcome.usage).toMatchObject({
    status: 200,
    errorKind: null,
    errorMessage: null,
    attempts: 6,
    durationMs: 9,
    startedAt: NOW,
    finishReason: 'stop',
    tokens: { input: 10, output: 2 },
    costNanos: 12_000n,
    route: { requestedModel: 'm', model: 'm', host: 'up', hostKey: 'one', pricing: 'price' },
  });
});

test.each<[CallClass, Partial<CallResult>, string, string]>([
  ['auth', { status: 401 }, 'upstream status 401', 'upstream_error'],
  ['account', { status: 402 }, 'upstream status 402', 'upstream_error'],
  ['forbidden', { status: 403 }, 'upstream status 403', 'upstream_error'],
  ['rate_limit_short', { status: 429 }, 'upstream status 429', 'upstream_error'],
  ['rate_limit_long', { status: 429, retryAfterMs: 9000 }, 'upstream status 429', 'upstream_error'],
  ['server_error', { status: 529 }, 'upstream status 529', 'upstream_error'],
  ['network', { status: 0, body: null }, 'connection to upstream lost', 'upstream_error'],
  ['unreachable', { status: 0, body: null }, 'upstream "up" unreachable after 3 attempts', 'upstream_unreachable'],
  ['client_error', { status: 400 }, 'upstream status 400', 'upstream_error'],
  ['too_large', {}, 'response larger than 64 MiB', 'bad_response'],
  ['timeout', { status: 0, body: null }, 'timed out after 300s', 'timeout'],
  ['bad_response', { badReason: 'not_json' }, 'upstream answered 200 with a body that is not JSON', 'bad_response'],
  [
    'bad_response',
    { badReason: 'no_response' },
    'upstream answered 200 with a body that is no response',
    'bad_response',
  ],
  ['bad_response', { status: 201, badReason: 'error_inside' }, 'upstream answered 201 with an error', 'bad_response'],
  [
    'bad_response',
    { badReason: 'error_inside', message: 'no such engine' },
    'upstream answered 200 with an error: no such engine',
    'bad_response',
  ],
  // Whatever class its code has: it was a 200.
  ...(['rate_limit_short', 'server_error', 'transient', 'account'] as const).map(
    (callClass): [CallClass, Partial<CallResult>, string, string] => [
      callClass,
      { badReason: 'error_inside', message: 'slow down' },
      'upstream answered 200 with an error: slow down',
      'bad_response',
    ],
  ),
  ['transient', { status: 409 }, 'upstream status 409', 'upstream_error'],
])('%s %o is discarded as "%s"', (callClass, more, text, kind) => {
  const outcome = concluded({ last: result(callClass, more) });
  expect(outcome).toMatchObject({
    kind: 'final',
    state: 'discarded',
    error: `batch item: ${text}`,
    response: null,
    usage: { errorKind: kind, errorMessage: text, attempts: 6, tokens: null, costNanos: null, finishReason: null },
  });
});

test('an error body is kept for the surfaces that return it, never for the native one', () => {
  const last = result('client_error', { status: 400 });
  expect(concluded({ last, batch: { surface: 'openai' } })).toMatchObject({ response: BODY });
  expect(concluded({ last })).toMatchObject({ response: null });
});

test('an error body that repeats the host key is kept for nobody', () => {
  const kept = (text: string) => {
    const last = result('auth', { status: 401, body: Buffer.from(text) });
    const outcome = concluded({ last, batch: { surface: 'openai' } });
    return outcome.kind === 'final' && outcome.response?.toString();
  };
  const masked = '{"error":{"message":"Incorrect API key provided: sk-host*********6789."}}';
  expect(kept(masked)).toBe(masked);
  expect(kept(`{"error":{"message":"Incorrect API key provided: ${key.value}."}}`)).toBeUndefined();
});

test('the message of an error inside a 200 is cut, and names no key of the host', () => {
  const told = (message: string) => {
    const outcome = concluded({ last: result('bad_response', { badReason: 'error_inside', message }) });
    return outcome.kind === 'final' && outcome.error;
  };
  const plain = 'batch item: upstream answered 200 with an error';
  expect(told('x'.repeat(1024))).toBe(`${plain}: ${'x'.repeat(128)}`);
  for (const { value } of [key, other]) expect(told(`the key ${value} is wrong`)).toBe(plain);
});

test('the body of an answer that is no response is kept where error bodies are', () => {
  const last = result('bad_response', { badReason: 'error_inside', body: Buffer.from('{"error":"x"}') });
  expect(concluded({ last, batch: { surface: 'anthropic' } })).toMatchObject({ response: last.body });
  expect(concluded({ last })).toMatchObject({ response: null });
});

test('a retryable failure whose time is up says that it timed out', () => {
  expect(concluded({ last: result('server_error', { status: 500 }), late: true })).toMatchObject({
    error: 'batch item: timed out after 300s',
    usage: { errorKind: 'timeout', status: 500 },
  });
});

test.each<CallClass>(['rate_limit_short', 'rate_limit_long', 'server_error', 'transient', 'network', 'unreachable'])(
  '%s runs again while rounds are left, doubling the pause, with Retry-After as its floor',
  (callClass) => {
    for (const rounds of [0, 1, 2, 8]) {
      const outcome = concluded({ last: result(callClass), batch: { maxAttempts: 10 }, item: { rounds } });
      if (outcome.kind !== 'released') throw new Error(`round ${rounds} is ${outcome.kind}`);
      expect(outcome).toMatchObject({ attempts: 6, rounds: rounds + 1, loadFailed: false });
      const base = Math.min(60_000, 1000 * 2 ** rounds);
      expect(outcome.delayMs).toBeGreaterThanOrEqual(base / 2);
      expect(outcome.delayMs).toBeLessThanOrEqual(base * 1.5);
    }
    const waits = concluded({ last: result(callClass, { retryAfterMs: 123_456 }), batch: { maxAttempts: 2 } });
    expect(waits).toMatchObject({ kind: 'released', delayMs: 123_456 });
    const last = concluded({ last: result(callClass), batch: { maxAttempts: 2 }, item: { rounds: 1 } });
    expect(last).toMatchObject({ kind: 'final', state: 'discarded' });
  },
);

test.each<CallClass>(['auth', 'account', 'forbidden', 'client_error', 'bad_response', 'too_large', 'timeout'])(
  '%s is not run again, whatever max_attempts says',
  (callClass) => {
    expect(concluded({ last: result(callClass), batch: { maxAttempts: 10 } })).toMatchObject({ kind: 'final' });
  },
);

test('an abort gives the item back with its calls counted and no round spent', () => {
  for (const last of [undefined, result('aborted'), result('server_error'), result('unreachable'), result('auth')]) {
    const outcome = concluded({ ...(last ? { last } : {}), aborted: true, reopens: 50 });
    expect(outcome).toMatchObject({ kind: 'released', delayMs: 0, attempts: last ? 6 : 4, rounds: 0, waitedMs: 0 });
  }
});

test('an answer that was complete before the abort is recorded', () => {
  for (const last of [result('success'), result('client_error'), result('bad_response'), result('too_large')]) {
    expect(concluded({ last, aborted: true })).toMatchObject({ kind: 'final' });
  }
});

test('open breakers pause the item, at least 250 ms, and count what it has waited', () => {
  expect(concluded({ reopens: 2000, item: { waitedMs: 500 } })).toMatchObject({
    kind: 'released',
    delayMs: 2000,
    waitedMs: 2500,
    attempts: 4,
    rounds: 0,
  });
  expect(concluded({ reopens: 0 })).toMatchObject({ kind: 'released', delayMs: 250 });
});

test('breakers that reopen too late, or never, are no healthy keys; on_limit wait waits for the former', () => {
  const none = {
    kind: 'final',
    state: 'discarded',
    error: 'batch item: no healthy keys in pool',
    usage: { status: 0, errorKind: 'keys_exhausted', attempts: 4, route: { host: 'up', hostKey: null } },
  };
  expect(concluded({ reopens: 1000, item: { waitedMs: 299_000 } })).toMatchObject({ kind: 'released' });
  expect(concluded({ reopens: 1001, item: { waitedMs: 299_000 } })).toMatchObject(none);
  expect(concluded({ reopens: null })).toMatchObject(none);
  const wait = { batch: { onLimit: 'wait' as const }, item: { waitedMs: 9_000_000 } };
  expect(concluded({ reopens: 1001, ...wait })).toMatchObject({ kind: 'released', waitedMs: 9_001_001 });
  expect(concluded({ reopens: null })).toMatchObject(none);
});

test('a spent tier of every key is its own refusal', () => {
  const refusal = refused({ attempts: 4 } as PreparedItem['item'], 'rate_limited', 'rate limit exceeded: x');
  expect(concluded({ refusal, reopens: 10 })).toBe(refusal);
});

test('under on_limit wait an item whose keys are refused for good looks again after a minute, then less often', () => {
  const wait = { batch: { onLimit: 'wait' as const }, why: 'auth' as const, reopens: null };
  const delays = [0, 60_000, 400_000, 9_000_000].map((waitedMs) => {
    const outcome = concluded({ ...wait, item: { waitedMs } });
    return outcome.kind === 'released' && outcome.delayMs;
  });
  expect(delays).toEqual([60_000, 60_000, 100_000, 600_000]);
});

test.each<[CallClass, boolean]>([
  ['auth', false],
  ['account', false],
  ['forbidden', true],
])('an item that met %s (probe: %s) waits for a key that reopens, and says why', (callClass, probeRefused) => {
  const last = result(callClass, { status: 403 });
  expect(concluded({ last, probeRefused, reopens: 5000, item: { waitedMs: 100 } })).toMatchObject({
    kind: 'released',
    delayMs: 5000,
    waitedMs: 5100,
    attempts: 6,
    rounds: 0,
    wait: { reason: 'key_breaker', text: 'upstream status 403' },
  });
  const final = { kind: 'final', error: 'batch item: upstream status 403', usage: { status: 403 } };
  expect(concluded({ last, probeRefused, reopens: 600_000 })).toMatchObject(final);
  expect(concluded({ last, probeRefused, reopens: null })).toMatchObject(final);
  const wait = { last, probeRefused, batch: { onLimit: 'wait' as const } };
  expect(concluded({ ...wait, reopens: 600_000 })).toMatchObject({ kind: 'released', delayMs: 600_000 });
  expect(concluded({ ...wait, reopens: null })).toMatchObject({ kind: 'released', delayMs: 60_000 });
  expect(concluded({ ...wait, reopens: 5, anonymous: true })).toMatchObject(final);
});

test('the 403 of a call that was no probe ends the item', () => {
  const last = result('forbidden', { status: 403 });
  expect(concluded({ last, reopens: 50, batch: { onLimit: 'wait' } })).toMatchObject({ kind: 'final' });
});

test('a released item says why it waits, and what it failed on', () => {
  const waits = (given: Given) => {
    const outcome = concluded({ batch: { maxAttempts: 5 }, ...given });
    return outcome.kind === 'released' ? outcome.wait : outcome.kind;
  };
  const retry = { reason: 'retry_pause', text: 'upstream status 500', hostKey: key.name };
  expect(waits({ last: result('server_error', { status: 500 }) })).toEqual(retry);
  const lost = { reason: 'host_down', text: 'upstream "up" unreachable after 3 attempts', hostKey: key.name };
  expect(waits({ last: result('unreachable') })).toEqual(lost);
  expect(waits({ reopens: 9, why: 'account' })).toMatchObject({ reason: 'no_credit' });
  const breaker = { reason: 'key_breaker', text: 'connection to upstream lost', hostKey: 'first' };
  expect(waits({ reopens: 9, why: 'network' })).toEqual(breaker);
  expect(waits({ aborted: true })).toBeNull();
  const failed = concluded({ last: result('network'), batch: { maxAttempts: 5 }, failedKey: 'k1' });
  expect(failed).toMatchObject({ kind: 'released', failedKey: 'k1' });
});

describe('on the SDK surfaces', () => {
  const sdk = { surface: 'openai', maxAttempts: 32_767, onLimit: 'wait' as const };
  const ended = (failedRounds: number, callClass: CallClass, more: Partial<Given> = {}) =>
    concluded({ last: result(callClass, { status: 500 }), batch: sdk, item: { rounds: 3, failedRounds }, ...more });

  test.each<CallClass>(['server_error', 'transient', 'network'])(
    '%s ends an item in its 12th failed round',
    (callClass) => {
      expect(ended(0, callClass)).toMatchObject({ kind: 'released', rounds: 4, failedRounds: 1 });
      expect(ended(10, callClass)).toMatchObject({ kind: 'released', rounds: 4, failedRounds: 11 });
      expect(ended(11, callClass)).toMatchObject({ kind: 'final', state: 'discarded', response: BODY });
    },
  );

  test('and in its sixth while others of its model succeed', () => {
    const others = { othersSucceed: true };
    expect(ended(4, 'server_error', { othersSucceed: false })).toMatchObject({ kind: 'released', failedRounds: 5 });
    const sixth = ended(5, 'server_error', others);
    expect(sixth).toMatchObject({ kind: 'final', error: 'batch item: upstream status 500', usage: { status: 500 } });
  });

  test.each<CallClass>(['rate_limit_short', 'rate_limit_long', 'unreachable'])(
    '%s counts as no failed round',
    (cls) => {
      expect(ended(50, cls, { othersSucceed: true })).toMatchObject({ kind: 'released', rounds: 4, failedRounds: 50 });
    },
  );

  test('a wait and a stop count as none', () => {
    const waits = { batch: sdk, item: { failedRounds: 7 }, reopens: 5 };
    expect(concluded(waits)).toMatchObject({ kind: 'released', failedRounds: 7 });
    expect(ended(7, 'aborted', { aborted: true })).toMatchObject({ kind: 'released', failedRounds: 7 });
  });

  test('native batches have max_attempts alone', () => {
    const native = { batch: { maxAttempts: 32_767 }, othersSucceed: true };
    expect(ended(99, 'server_error', native)).toMatchObject({ kind: 'released' });
  });
});
