import { describe, expect, test } from 'vitest';
import { hostKeyRules, joinRules, limitText, policyRules } from '../../../lib/limits/rules.ts';
import { meteredTokens } from '../../../lib/limits/settle.ts';
import type { Catalog, HostKey, LimitRule, Model, Policy, RateLimit } from '../../../lib/model/catalog.ts';

const model = (name: string, provider = 'openai', status: 'active' | 'deprecated' = 'active'): Model => ({
  id: `m-${name}`,
  name,
  provider,
  aliases: [],
  snapshots: [],
  deprecation: { status },
  enabled: true,
});
const policy = (limits: Partial<Policy>): Policy => ({
  id: 'p-1',
  name: 'default',
  models: [],
  hostKeys: [],
  rateLimits: [],
  keySelection: 'prioritized',
  includeDeprecated: false,
  enabled: true,
  ...limits,
});
const hostKey = (fields: Partial<HostKey>): HostKey => ({
  id: 'k-1',
  name: 'local-1',
  host: 'local',
  value: 'secret',
  breakerKey: '0123456789ab',
  enabled: true,
  ...fields,
});
const requests = (amount: number, window = 60): LimitRule => ({
  meter: 'requests',
  amount,
  window,
  strategy: 'fixed-window',
});
const limit = (name: string, ...rules: LimitRule[]): RateLimit => ({ id: `r-${name}`, name, rules, enabled: true });

/** Only the maps that limits read. */
function catalog(rateLimits: RateLimit[], policies: Policy[] = []): Catalog {
  return {
    rateLimits: new Map(rateLimits.map((value) => [value.name, value])),
    policies: new Map(policies.map((value) => [value.name, value])),
  } as unknown as Catalog;
}

const gpt = model('gpt-4o');
const mini = model('gpt-4o-mini');

describe('policy rules', () => {
  test('a policy without limits has the one empty list', () => {
    const none = policyRules(catalog([]), policy({}), gpt, 'local');
    expect(none).toEqual([]);
    expect(policyRules(catalog([]), policy({}), gpt, 'local')).toBe(none);
  });

  test('a rateLimit has one bucket for all models and hosts', () => {
    const of = catalog([limit('sixty', requests(60))]);
    const governed = policy({ rateLimit: 'sixty' });
    const rules = policyRules(of, governed, gpt, 'local');
    expect(rules).toMatchObject([
      { scope: 'policy', name: 'default', meter: 'requests', amount: 60, window: 60, strategy: 'fixed-window' },
    ]);
    expect(policyRules(of, governed, mini, 'other')).toBe(rules);
  });

  test('the first matching entry of rateLimits counts, each model with a bucket of its own', () => {
    const of = catalog([limit('few', requests(1)), limit('many', requests(100))]);
    const governed = policy({
      rateLimits: [
        { models: ['openai/gpt-4o'], rateLimit: 'few' },
        { models: ['openai'], rateLimit: 'many' },
      ],
    });
    const [first] = policyRules(of, governed, gpt, 'local');
    const [second] = policyRules(of, governed, mini, 'local');
    const [third] = policyRules(of, governed, model('gpt-5'), 'local');
    expect([first?.amount, second?.amount, third?.amount]).toEqual([1, 100, 100]);
    expect(new Set([first?.bucketId, second?.bucketId, third?.bucketId]).size).toBe(3);
  });

  test('no matching entry of rateLimits is no limit', () => {
    const governed = policy({ rateLimits: [{ models: ['anthropic'], rateLimit: 'few' }] });
    expect(policyRules(catalog([limit('few', requests(1))]), governed, gpt, 'local')).toHaveLength(0);
  });

  test('patterns may name a host', () => {
    const governed = policy({ rateLimits: [{ models: ['@local'], rateLimit: 'few' }] });
    const of = catalog([limit('few', requests(1))]);
    expect(policyRules(of, governed, gpt, 'local')).toHaveLength(1);
    expect(policyRules(of, governed, gpt, 'elsewhere')).toHaveLength(0);
  });

  test('a pattern for a provider holds for its deprecated models too', () => {
    const governed = policy({ rateLimits: [{ models: ['openai'], rateLimit: 'few' }] });
    const old = model('gpt-3', 'openai', 'deprecated');
    expect(policyRules(catalog([limit('few', requests(1))]), governed, old, 'local')).toHaveLength(1);
  });

  test('a disabled RateLimit is no limit', () => {
    const of = catalog([{ ...limit('sixty', requests(60)), enabled: false }]);
    expect(policyRules(of, policy({ rateLimit: 'sixty' }), gpt, 'local')).toHaveLength(0);
  });

  test('a changed amount keeps the bucket; another window, meter, strategy or policy has its own', () => {
    const idOf = (rule: LimitRule, id = 'p-1') =>
      policyRules(catalog([limit('l', rule)]), policy({ id, rateLimit: 'l' }), gpt, 'local')[0]?.bucketId;
    const base = requests(60);
    expect(idOf({ ...base, amount: 90 })).toBe(idOf(base));
    const ids = [
      idOf(base),
      idOf({ ...base, window: 61 }),
      idOf({ ...base, meter: 'tokens' }),
      idOf({ ...base, strategy: 'sliding-window' }),
      idOf(base, 'p-2'),
    ];
    expect(new Set(ids).size).toBe(5);
  });

  test('two rules that differ in the amount only count once, with the smaller amount', () => {
    const of = catalog([limit('l', requests(60), requests(10), requests(90))]);
    expect(policyRules(of, policy({ rateLimit: 'l' }), gpt, 'local').map((rule) => rule.amount)).toEqual([10]);
  });

  test('the same arguments give the same array, and a new catalogue a new one', () => {
    const governed = policy({ rateLimit: 'sixty' });
    const [one, two] = [catalog([limit('sixty', requests(60))]), catalog([limit('sixty', requests(70))])];
    expect(policyRules(one, governed, gpt, 'local')).toBe(policyRules(one, governed, gpt, 'local'));
    expect(policyRules(two, governed, gpt, 'local')[0]?.amount).toBe(70);
  });
});

describe('host key rules', () => {
  const tier = policy({ id: 'p-2', name: 'tier', rateLimit: 'sixty' });
  const of = catalog([limit('sixty', requests(60))], [tier]);

  test('a key without a tier policy has none', () => {
    expect(hostKeyRules(of, hostKey({}), gpt)).toEqual([]);
  });

  test('each key of a tier has a bucket of its own, apart from the policy of the same name', () => {
    const [first] = hostKeyRules(of, hostKey({ policy: 'tier' }), gpt);
    const [second] = hostKeyRules(of, hostKey({ policy: 'tier', id: 'k-2', name: 'local-2' }), gpt);
    expect(first).toMatchObject({ scope: 'hostkey', name: 'local-1', amount: 60 });
    const ids = [first?.bucketId, second?.bucketId, policyRules(of, tier, gpt, 'local')[0]?.bucketId];
    expect(new Set(ids).size).toBe(3);
  });

  test('join the rules of a policy as one list, always the same', () => {
    const own = policyRules(of, tier, gpt, 'local');
    const keys = hostKeyRules(of, hostKey({ policy: 'tier' }), gpt);
    expect(joinRules(own, keys)).toEqual([...own, ...keys]);
    expect(joinRules(own, keys)).toBe(joinRules(own, keys));
    expect(joinRules(own, [])).toBe(own);
    expect(joinRules([], keys)).toBe(keys);
  });
});

describe('texts and meters', () => {
  test('a refusal names meter, scope, name and the wait', () => {
    expect(limitText({ meter: 'requests', scope: 'policy', name: 'default' }, 7)).toBe(
      'rate limit exceeded: requests of policy default, retry in 7s',
    );
    expect(limitText({ meter: 'tokens.input', scope: 'hostkey', name: 'local-1' }, 1)).toBe(
      'rate limit exceeded: tokens.input of hostkey local-1, retry in 1s',
    );
  });

  test.each([
    ['tokens', 1 + 2 + 4 + 8 + 16 + 32],
    ['tokens.input', 1],
    ['tokens.output', 2],
    ['tokens.cache_read', 4],
    ['tokens.cache_creation', 8 + 16 + 32],
    ['tokens.reasoning', 64],
    ['requests', 0],
    ['concurrency', 0],
  ] as const)('%s counts its own parts, each once', (meter, expected) => {
    const tokens = {
      input: 1,
      output: 2,
      cache_read: 4,
      cache_creation: 8,
      cache_creation_5m: 16,
      cache_creation_1h: 32,
      reasoning: 64,
      audio_output: 128,
    };
    expect(meteredTokens(meter, tokens)).toBe(expected);
  });
});
