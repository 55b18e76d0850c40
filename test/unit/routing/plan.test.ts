import { describe, expect, test } from 'vitest';
import type { Policy, Shape } from '../../../lib/model/catalog.ts';
import { planRoute, type Route, routeFailureText, routesOf } from '../../../lib/routing/plan.ts';
import { type CatalogSketch, catalogOf } from '../../support/routing-catalog.ts';

const base: CatalogSketch = {
  hosts: [{ name: 'local' }, { name: 'azure' }, { name: 'openai' }, { name: 'free', noAuth: true }],
  models: [{ name: 'gpt-4o' }],
  bindings: [{ model: 'gpt-4o', host: 'local' }],
  hostKeys: [
    { name: 'local-1', host: 'local' },
    { name: 'azure-1', host: 'azure' },
    { name: 'openai-1', host: 'openai' },
  ],
  policies: [{ name: 'default', hostKeys: ['local-1', 'azure-1', 'openai-1'] }],
};

/** Routes `requested` through the base catalogue with parts of it replaced, under its policy `default`. */
function route(sketch: CatalogSketch, requested = 'gpt-4o', shape: Shape = 'openai', policy = 'default'): Route {
  const catalog = catalogOf({ ...base, ...sketch });
  return planRoute(routesOf(catalog), { requestedModel: requested, shape, policy: catalog.policies.get(policy) });
}

const policies = (change: Partial<Policy>, ...more: (Partial<Policy> & { name: string })[]): CatalogSketch => ({
  policies: [{ ...base.policies![0]!, ...change }, ...more],
});

/** The part of a route that a test compares: hosts, or the failure's code. */
function outcome(result: Route): string {
  return result.kind === 'failed' ? result.code : result.candidates.map(({ host }) => host.name).join(' ');
}

describe('routing errors', () => {
  test.each<[string, CatalogSketch, string, string, string]>([
    ['unknown model', {}, 'gpt-9', 'model_not_found', 'model not found'],
    ['disabled model', { models: [{ name: 'gpt-4o', enabled: false }] }, 'gpt-4o', 'model_disabled', 'model disabled'],
    ['policy gone', { policies: [] }, 'gpt-4o', 'policy_not_found', 'policy not found'],
    ['policy disabled', policies({ enabled: false }), 'gpt-4o', 'policy_disabled', 'policy disabled'],
    ['not granted', policies({ models: ['google'] }), 'gpt-4o', 'model_not_allowed', 'model not allowed by policy'],
    ['no enabled binding', { bindings: [] }, 'gpt-4o', 'no_host_binding', 'no enabled host binding for model'],
    ['no key', policies({ hostKeys: ['azure-1'] }), 'gpt-4o', 'no_keys', 'no host keys available for this host'],
  ])('%s', (_why, sketch, requested, code, error) => {
    const failure = route(sketch, requested);
    expect(failure).toMatchObject({ kind: 'failed', code, error, requestedModel: requested });
    expect(routeFailureText(failure as never)).toBe(`route "${requested}": ${error}`);
  });

  test('an unknown model is told before a disabled model, that before the policy, the policy before the binding', () => {
    const broken = { models: [{ name: 'gpt-4o', enabled: false }], bindings: [] };
    expect(outcome(route({ ...broken, policies: [] }, 'gpt-9'))).toBe('model_not_found');
    expect(outcome(route({ ...broken, policies: [] }))).toBe('model_disabled');
    expect(outcome(route({ bindings: [], policies: [] }))).toBe('policy_not_found');
    expect(outcome(route({ bindings: [], ...policies({ enabled: false, models: ['google'] }) }))).toBe(
      'policy_disabled',
    );
    expect(outcome(route(policies({ models: ['google'], hostKeys: [] })))).toBe('model_not_allowed');
  });

  test('the text cuts a long model name and shows its control characters', () => {
    const failure = route({}, `a\u0000b${'x'.repeat(2000)}`);
    expect(routeFailureText(failure as never)).toBe(`route "a\\u0000b${'x'.repeat(125)}": model not found`);
  });
});

describe('walk of the bindings', () => {
  const two = [
    { model: 'gpt-4o', host: 'local', priority: 1 },
    { model: 'gpt-4o', host: 'azure', priority: 0 },
  ];

  test('goes by ascending priority, then name, and keeps the later ones for failover', () => {
    expect(outcome(route({ bindings: two }))).toBe('azure local');
    const named = [
      { model: 'gpt-4o', host: 'local', name: 'a' },
      { model: 'gpt-4o', host: 'azure', name: 'b' },
    ];
    expect(outcome(route({ bindings: named }))).toBe('local azure');
  });

  test.each<[string, CatalogSketch]>([
    ['disabled binding', { bindings: [two[0]!, { ...two[1]!, enabled: false }] }],
    ['disabled host', { bindings: two, hosts: [{ name: 'local' }, { name: 'azure', enabled: false }] }],
    ['unknown host', { bindings: two, hosts: [{ name: 'local' }] }],
    ['host without a key', { bindings: two, ...policies({ hostKeys: ['local-1'] }) }],
    ['host that is not granted', { bindings: two, ...policies({ models: ['openai@local'] }) }],
    ['binding of another adapter', { bindings: [two[0]!, { ...two[1]!, adapter: 'anthropic' }] }],
  ])('passes over a %s', (_what, sketch) => {
    expect(outcome(route(sketch))).toBe('local');
  });

  test('passes over hosts that the request does not pin', () => {
    expect(outcome(route({ bindings: two }, 'gpt-4o@local'))).toBe('local');
  });

  test("sends the binding's upstreamName, else what the name resolved to", () => {
    const bindings = [{ ...two[0]!, upstreamName: 'gpt-4o-2024' }, two[1]!];
    const plan = route({ bindings, models: [{ name: 'gpt-4o', aliases: ['my-*'] }] }, 'my-Own');
    expect(plan).toMatchObject({
      resolvedVia: 'wildcard',
      candidates: [{ wireName: 'my-Own' }, { wireName: 'gpt-4o-2024' }],
    });
  });
});

describe('shape', () => {
  const anthropic = { model: 'gpt-4o', host: 'local', adapter: 'anthropic' as const };

  test('another adapter fails with both names, without the route prefix', () => {
    const failure = route({ bindings: [anthropic] });
    expect(failure).toMatchObject({ code: 'cross_shape' });
    expect(routeFailureText(failure as never)).toBe('cross-shape dispatch not supported (openai -> anthropic)');
  });

  test("the text names the first granted binding's adapter", () => {
    const bindings = [anthropic, { model: 'gpt-4o', host: 'azure', adapter: 'openai_responses' as const, priority: 1 }];
    const failure = route({ bindings, ...policies({ models: ['@azure'] }) });
    expect(failure).toMatchObject({ error: 'cross-shape dispatch not supported (openai -> openai_responses)' });
  });

  test('is told only to those who are granted the model', () => {
    expect(outcome(route({ bindings: [anthropic], ...policies({ models: ['google'] }) }))).toBe('model_not_allowed');
  });

  test('embeddings go to an openai binding without its host’s path, which is for Chat Completions', () => {
    const hosts = [{ name: 'local', path: '/custom/chat' }];
    const pathOf = (sketch: CatalogSketch, shape: Shape) => {
      const plan = route({ hosts, ...sketch }, 'gpt-4o', shape);
      return plan.kind === 'plan' && [plan.candidates[0]!.adapter, plan.candidates[0]!.host.path];
    };
    expect(pathOf({}, 'openai_embeddings')).toEqual(['openai_embeddings', undefined]);
    expect(pathOf({}, 'openai')).toEqual(['openai', '/custom/chat']);
    const own = { model: 'gpt-4o', host: 'local', adapter: 'openai_embeddings' as const };
    expect(pathOf({ bindings: [own] }, 'openai_embeddings')).toEqual(['openai_embeddings', '/custom/chat']);
  });

  test('an openai_responses item goes to an openai binding of the host named openai', () => {
    const bindings = [{ model: 'gpt-4o', host: 'openai' }];
    const plan = route({ bindings }, 'gpt-4o', 'openai_responses');
    expect(plan).toMatchObject({ candidates: [{ adapter: 'openai', host: { name: 'openai' } }] });
  });

  test('but prefers a binding of its own, and no other host is excepted', () => {
    const own = { model: 'gpt-4o', host: 'azure', adapter: 'openai_responses' as const, priority: 9 };
    const bindings = [{ model: 'gpt-4o', host: 'openai' }, own];
    expect(outcome(route({ bindings }, 'gpt-4o', 'openai_responses'))).toBe('azure');
    expect(outcome(route({}, 'gpt-4o', 'openai_responses'))).toBe('cross_shape');
    expect(outcome(route({ bindings: [{ model: 'gpt-4o', host: 'openai' }] }, 'gpt-4o', 'anthropic'))).toBe(
      'cross_shape',
    );
  });
});

describe('grants', () => {
  const deprecated = (status: 'deprecated' | 'sunset') => ({ models: [{ name: 'gpt-4o', deprecation: { status } }] });

  test.each([
    ['openai', true],
    ['openai/gpt-4o', true],
    ['OpenAI/GPT.4o', true],
    ['openai@local', true],
    ['openai/gpt-4o@local', true],
    ['@local', true],
    ['google', false],
    ['openai/gpt-5', false],
    ['google/gpt-4o', false],
    ['openai@azure', false],
    ['openai/gpt-4o@azure', false],
    ['@azure', false],
    ['*', false],
    ['', false],
    ['openai/', false],
    ['openai@', false],
  ])('%j reaches openai/gpt-4o@local: %s', (entry, granted) => {
    expect(outcome(route(policies({ models: [entry] })))).toBe(granted ? 'local' : 'model_not_allowed');
  });

  test('any entry of several is enough', () => {
    expect(outcome(route(policies({ models: ['google', '@local'] })))).toBe('local');
  });

  test('none passes every model, noAuth hosts included', () => {
    expect(outcome(route({ bindings: [{ model: 'gpt-4o', host: 'free' }], ...policies({ hostKeys: [] }) }))).toBe(
      'free',
    );
  });

  test.each(['deprecated', 'sunset'] as const)(
    'a %s model is granted only when named, or with includeDeprecated',
    (status) => {
      const under = (change: Partial<Policy>) => outcome(route({ ...deprecated(status), ...policies(change) }));
      expect(under({})).toBe('model_not_allowed');
      expect(under({ models: ['openai'] })).toBe('model_not_allowed');
      expect(under({ models: ['@local'] })).toBe('model_not_allowed');
      expect(under({ models: ['openai/gpt-4o'] })).toBe('local');
      expect(under({ models: ['openai'], includeDeprecated: true })).toBe('local');
      expect(under({ includeDeprecated: true })).toBe('local');
    },
  );
});

describe('candidate keys', () => {
  const keysOf = (sketch: CatalogSketch) => {
    const plan = route(sketch);
    return plan.kind === 'plan' ? plan.candidates[0]!.keys.map(({ name }) => name) : plan.code;
  };
  const three = (change: object): CatalogSketch => ({
    hostKeys: [
      { name: 'a', host: 'local', ...change },
      { name: 'b', host: 'local' },
      { name: 'c', host: 'azure' },
    ],
  });

  test("are the policy's, in its order, of that host only", () => {
    expect(keysOf({ ...three({}), ...policies({ hostKeys: ['c', 'b', 'a', 'b', 'gone'] }) })).toEqual(['b', 'a']);
  });

  test.each([
    ['disabled key', { enabled: false }],
    ['key whose variable is unset', { value: null }],
    ['key whose tier policy does not allow the model', { policy: 'tier' }],
    ['key whose tier policy is disabled', { policy: 'off' }],
    ['key whose tier policy is gone', { policy: 'gone' }],
  ])('leave out a %s', (_what, change) => {
    const tiers = [
      { name: 'tier', models: ['google'] },
      { name: 'off', enabled: false },
    ];
    expect(keysOf({ ...three(change), ...policies({ hostKeys: ['a', 'b'] }, ...tiers) })).toEqual(['b']);
    expect(keysOf({ ...three(change), ...policies({ hostKeys: ['a'] }, ...tiers) })).toBe('no_keys');
  });

  test('a tier policy without models allows every model, whatever its own hostKeys', () => {
    const sketch = { ...three({ policy: 'tier' }), models: [{ name: 'gpt-4o' }] };
    const tier = { name: 'tier', hostKeys: ['c'] };
    expect(keysOf({ ...sketch, ...policies({ hostKeys: ['a'] }, tier) })).toEqual(['a']);
  });

  test('a noAuth host has one anonymous key without value, name or breaker', () => {
    const plan = route({ bindings: [{ model: 'gpt-4o', host: 'free' }] });
    expect(plan).toMatchObject({ candidates: [{ keys: [{ name: '', value: null, breakerKey: '', host: 'free' }] }] });
  });
});

describe('memo', () => {
  test('gives the same plan for the same question, and another for another policy, shape or catalogue', () => {
    const catalog = catalogOf({ ...base, ...policies({}, { name: 'other', hostKeys: ['local-1'] }) });
    const routes = routesOf(catalog);
    const ask = (policy: string, shape: Shape) =>
      planRoute(routes, { requestedModel: 'gpt-4o', shape, policy: catalog.policies.get(policy) });
    expect(ask('default', 'openai')).toBe(ask('default', 'openai'));
    expect(ask('other', 'openai')).toMatchObject({ kind: 'plan', policy: { name: 'other' } });
    expect(ask('default', 'anthropic')).toMatchObject({ code: 'cross_shape' });
    expect(ask('gone', 'openai')).toMatchObject({ code: 'policy_not_found' });
    expect(routesOf(catalog)).toBe(routes);
    expect(routesOf({ ...catalog })).not.toBe(routes);
  });

  test('stays bounded under made-up names and still answers right', () => {
    const catalog = catalogOf(base);
    const routes = routesOf(catalog);
    const policy = catalog.policies.get('default');
    for (let i = 0; i < 40_000; i++) planRoute(routes, { requestedModel: `made-up-${i}`, shape: 'openai', policy });
    const size = [...routes.plans.values()]
      .flatMap((shapes) => [...shapes.values()])
      .reduce((n, memo) => n + memo.size, 0);
    expect(size).toBeLessThanOrEqual(16_384);
    expect(outcome(planRoute(routes, { requestedModel: 'gpt-4o', shape: 'openai', policy }))).toBe('local');
  });
});
