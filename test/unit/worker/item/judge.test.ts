import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { BatchContext, ClaimedItem } from '../../../../lib/model/batch.ts';
import type { RelayKey } from '../../../../lib/model/catalog.ts';
import { createJudge, type ItemVerdict } from '../../../../lib/worker/item/judge.ts';
import { catalogOf } from '../../../support/routing-catalog.ts';

const KEY: RelayKey = { id: 'k', name: 'k', hash: 'h', prefix: 'sk-wr-', enabled: true };
const MODEL = { name: 'gpt-4o', aliases: ['gpt-*', 'claude'] };

function catalogWith(key: Partial<RelayKey> | null, version = 1) {
  const catalog = catalogOf({
    hosts: [{ name: 'up', noAuth: true }],
    models: [MODEL],
    bindings: [{ model: 'gpt-4o', host: 'up' }],
    policies: [{ name: 'default' }],
  });
  const keys = key === null ? [] : [{ ...KEY, ...key }];
  return {
    ...catalog,
    version,
    keysById: new Map(keys.map((one) => [one.id, one])),
    keysByHash: new Map(keys.map((one) => [one.hash, one])),
  };
}

const batch = {
  id: 'b',
  shape: 'openai',
  owner: 'h',
  policyId: 'id-default',
  credentialKind: 'key',
  credentialId: 'k',
} as BatchContext;
const item = { batch, idx: 0, attempts: 0 } as ClaimedItem;

test.each(['{}', '{"model":null}', '{"model":""}', '{"model":1}'])('an item %s needs a model', (body) => {
  const verdict = createJudge({ catalog: () => catalogWith({}), nowMs: () => 0 })(item, Buffer.from(body));
  expect(verdict).toMatchObject({ outcome: { error: 'batch item: model is required' } });
});

test('nothing that an item may hold makes the judge throw, and every verdict is a plan or a final outcome', () => {
  const judge = createJudge({ catalog: () => catalogWith({}), nowMs: () => 0 });
  const value = fc.jsonValue({ maxDepth: 4 });
  const model = fc.oneof(value, fc.string({ unit: 'binary' }), fc.constantFrom('gpt-4o', 'gpt-5', 'claude', '@', '/'));
  const body = fc.oneof(
    fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
    value.map((any) => Buffer.from(JSON.stringify(any))),
    fc.tuple(model, value).map(([m, v]) => Buffer.from(JSON.stringify({ model: m, stream: v, x: v }))),
    fc.nat(5000).map((depth) => Buffer.from(`{"model":"gpt-4o","x":${'['.repeat(depth)}${']'.repeat(depth)}}`)),
  );
  fc.assert(
    fc.property(body, (bytes) => {
      const verdict = judge(item, bytes) as ItemVerdict;
      if ('judged' in verdict) {
        expect(verdict.judged.body).toBe(bytes);
        expect(verdict.judged.plan.candidates.length).toBeGreaterThan(0);
        return;
      }
      const { outcome } = verdict;
      if (outcome.kind !== 'final') throw new Error(outcome.kind);
      expect(outcome.error).toBe(`batch item: ${outcome.usage.errorMessage}`);
      expect(outcome.error!.isWellFormed()).toBe(true);
      // biome-ignore lint/suspicious/noControlCharactersInRegex: Postgres refuses NUL, and logs stay on one line
      expect(outcome.error).not.toMatch(/[\u0000-\u001f]/);
      expect((outcome.usage.route.requestedModel ?? '').length).toBeLessThanOrEqual(128 * 6);
    }),
    { numRuns: 500 },
  );
});

test.each<[string, Partial<RelayKey> | null]>([
  ['api key deleted', null],
  ['api key disabled', { enabled: false }],
  ['api key revoked', { revokedAt: 1 }],
  ['api key expired', { expiresAt: 1 }],
  ['api key rotated', { hash: 'other' }],
])('a credential that is no longer valid: %s', (reason, key) => {
  const judge = createJudge({ catalog: () => catalogWith(key), nowMs: () => 1000 });
  const verdict = judge(item, Buffer.from('{"model":"gpt-4o"}')) as ItemVerdict;
  if (!('outcome' in verdict) || verdict.outcome.kind !== 'final') throw new Error();
  expect(verdict.outcome.error).toBe(`batch item: credential no longer valid: ${reason}`);
  expect(verdict.outcome.usage).toMatchObject({ errorKind: 'credential', status: 0 });
});

test('a credential is looked at again with a newer catalogue, and when its time is over', () => {
  let catalog = catalogWith({ expiresAt: 500 });
  let now = 0;
  const judge = createJudge({ catalog: () => catalog, nowMs: () => now });
  const good = () => 'judged' in judge(item, Buffer.from('{"model":"gpt-4o"}'));
  expect(good()).toBe(true);
  now = 499;
  expect(good()).toBe(true);
  now = 500;
  expect(good()).toBe(false);
  catalog = catalogWith({ expiresAt: 900 }, 2);
  expect(good()).toBe(true);
  catalog = catalogWith({ revokedAt: 1 }, 3);
  expect(good()).toBe(false);
});

test('a large item is judged like a small one, in turns of the event loop', async () => {
  const judge = createJudge({ catalog: () => catalogWith({}), nowMs: () => 0 });
  const judged = async (text: string) => {
    const verdict = await judge(item, Buffer.from(text));
    return 'judged' in verdict ? verdict.judged.model : verdict.outcome.kind === 'final' && verdict.outcome.error;
  };
  const pad = `"pad":"${'x'.repeat(200_000)}"`;
  expect(await judged(`{${pad},"model":"gpt-4o"}`)).toBe('gpt-4o');
  expect(await judged(`{${pad},"model":"gpt-4o","stream":true}`)).toBe('batch item: stream must not be true');
  expect(await judged(`[${pad.slice(6)}]`)).toBe('batch item: request body must be a JSON object');
  expect(await judged(`{${'"x":1,'.repeat(100_000)}"model":"gpt-4o"}`)).toBe(
    'batch item: request body has more than 100000 members',
  );
});
