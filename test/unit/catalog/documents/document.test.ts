import { describe, expect, test } from 'vitest';
import { checkDocument } from '../../../../lib/catalog/documents/document.ts';
import { KINDS, type Kind, kindOfPlural, PLURALS } from '../../../../lib/catalog/documents/kinds.ts';
import { PRICING_METERS } from '../../../../lib/catalog/documents/kinds-policies.ts';
import { TOKEN_PARTS } from '../../../../lib/model/usage-event.ts';

const WHERE = { file: 'c.yaml', document: 1 };
const GOOD: Record<Kind, object> = {
  Host: { baseURL: 'https://api.example.com/v1' },
  HostKey: { host: 'h', valueFrom: { kind: 'env', env: 'KEY' } },
  Model: { provider: 'openai' },
  Binding: { model: 'm', host: 'h' },
  Policy: {},
  RateLimit: { rules: [{ meter: 'requests', amount: 1, window: 1 }] },
  Pricing: { rates: [{ meter: 'tokens.input', unit: 'per_million', amount: 1 }] },
  Team: {},
  Project: {},
  User: {},
  ServiceAccount: { project: 'p' },
  Key: {},
};

/** Faults of a document of `kind` whose spec is the smallest good one with `changes`, as `field: message`. */
function faults(kind: Kind, changes: object, metadata: object = {}): string[] {
  const raw = { kind, metadata: { name: 'x', ...metadata }, spec: { ...GOOD[kind], ...changes } };
  const checked = checkDocument(raw, WHERE);
  return checked.ok ? [] : checked.faults.map((fault) => `${fault.field}: ${fault.message}`);
}
/** The fields that are faulty. */
const fields = (kind: Kind, changes: object) => faults(kind, changes).map((fault) => fault.split(': ')[0]);

describe('every kind', () => {
  test.each(KINDS)('%s: the smallest document is good, an unknown field is refused', (kind) => {
    expect(faults(kind, {})).toEqual([]);
    expect(faults(kind, { nope: 1 })).toEqual(['spec.nope: unknown field']);
    expect(faults(kind, {}, { displayName: 'Any text at all', labels: { 'a/b': '', c: '1' } })).toEqual([]);
    expect(faults(kind, {}, { nope: 1 })).toEqual(['metadata.nope: unknown field']);
    expect(kindOfPlural(PLURALS[kind])).toBe(kind);
  });

  test.each([['', 'a'.repeat(129), 'a b', 'a/b', 'ä', 'a\n', 1, null, undefined]])('refuses bad names', (...names) => {
    for (const name of names) {
      const checked = checkDocument({ kind: 'Team', metadata: { name } }, WHERE);
      expect(checked.ok ? [] : checked.faults.map((f) => f.field), String(name)).toEqual(['metadata.name']);
    }
  });

  test('takes names of every legal character and length', () => {
    for (const name of ['a', 'A', '0', '_', '-', '.', 'gpt-4o.2024_11-20', 'a'.repeat(128)]) {
      expect(faults('Team', {}, { name }), name).toEqual([]);
    }
  });

  test.each([undefined, null, 1, 'text', [], true])('%j is no document', (raw) => {
    const checked = checkDocument(raw, WHERE);
    expect(checked.ok).toBe(false);
  });

  test('unknown kinds are refused, inherited names too', () => {
    for (const kind of ['Gadget', 'host', 'constructor', '__proto__', 'toString', 1, null, undefined]) {
      const checked = checkDocument({ kind, metadata: { name: 'x' }, spec: {} }, WHERE);
      expect(checked.ok ? [] : checked.faults.map((f) => f.field), String(kind)).toEqual(['kind']);
    }
  });

  test('keys with meaning in JavaScript are unknown fields like others', () => {
    for (const key of ['__proto__', 'constructor', 'toString']) {
      const spec = JSON.parse(`{"${key}": {"a": 1}}`);
      expect(checkDocument({ kind: 'Team', metadata: { name: 'x' }, spec }, WHERE)).toMatchObject({
        faults: [{ field: `spec.${key}`, message: 'unknown field' }],
      });
    }
    const labels = JSON.parse('{"__proto__": "x"}');
    expect(checkDocument({ kind: 'Team', metadata: { name: 'x', labels } }, WHERE)).toMatchObject({
      faults: [{ field: 'metadata.labels', message: 'unknown field "__proto__"' }],
    });
  });

  test('control characters and lone surrogates are refused in every text', () => {
    for (const bad of ['a\r\nb', 'a\nb', 'a\u0000b', '\ud800', 'a\u0085b']) {
      expect(faults('Team', {}, { displayName: bad }).length).toBe(1);
      expect(faults('Team', {}, { labels: { a: bad } }).length).toBe(1);
      expect(fields('Host', { baseURL: `http://a/${bad}` })).toEqual(['spec.baseURL']);
      expect(fields('Host', { path: `/${bad}` })).toEqual(['spec.path']);
      expect(fields('HostKey', { valueFrom: { kind: 'stored' }, value: `k${bad}` })).toEqual(['spec.value']);
      expect(fields('HostKey', { valueFrom: { kind: 'env', env: bad } })).toEqual(['spec.valueFrom.env']);
      expect(fields('Model', { aliases: [bad] })).toContain('spec.aliases[0]');
      expect(fields('Model', { snapshots: [{ name: `a${bad}` }] })).toEqual(['spec.snapshots[0].name']);
      expect(fields('Binding', { upstreamName: bad })).toEqual(['spec.upstreamName']);
      expect(fields('User', { email: `a@b${bad}` })).toContain('spec.email');
    }
  });
});

describe('Host', () => {
  test.each([
    'http://127.0.0.1:9000',
    'https://api.openai.com/v1',
    'https://api.openai.com/v1/',
    'http://[::1]:8080/a/b',
    'https://host.example/path@with-at',
  ])('takes %s', (baseURL) => {
    expect(faults('Host', { baseURL })).toEqual([]);
  });

  test.each([
    ['ftp://a', 'must be an http or https URL'],
    ['file:///etc/passwd', 'must be an http or https URL'],
    ['api.openai.com', 'must be an http or https URL'],
    ['http://', 'must be an http or https URL'],
    ['http://user:pass@a/', 'must not contain credentials'],
    ['http://user@a/', 'must not contain credentials'],
    ['http://@a/', 'must not contain credentials'],
    ['http://a/?key=1', 'must not contain a query'],
    ['http://a/?', 'must not contain a query'],
    ['http://a/#x', 'must not contain a fragment'],
    ['http://a b', 'must be printable ASCII without spaces or line breaks'],
    [' http://a', 'must be printable ASCII without spaces or line breaks'],
    ['http://a\r\nX: 1', 'must be printable ASCII without spaces or line breaks'],
    [7, 'must be a string'],
    [undefined, 'is required'],
  ])('refuses %j', (baseURL, message) => {
    expect(faults('Host', { baseURL })).toEqual([`spec.baseURL: ${message}`]);
  });

  test('takes a path from the root, with a query, and nothing else', () => {
    for (const path of ['/', '/v1/chat/completions', '/openai/deployments/x?api-version=2024-06-01']) {
      expect(faults('Host', { path })).toEqual([]);
    }
    for (const path of ['', 'v1', 'http://b/', '/a b', '/a#b', '/a\\b', '/ä']) {
      expect(fields('Host', { path }), path).toEqual(['spec.path']);
    }
  });
});

describe('HostKey', () => {
  test('value goes with stored only', () => {
    expect(faults('HostKey', { valueFrom: { kind: 'stored' }, value: 'sk-1' })).toEqual([]);
    expect(faults('HostKey', { valueFrom: { kind: 'stored' } })).toEqual([]);
    expect(faults('HostKey', { value: 'sk-1' })).toEqual(['spec.value: goes with valueFrom.kind stored only']);
  });

  test('valueFrom is env or stored, each with its own fields', () => {
    expect(faults('HostKey', { valueFrom: { kind: 'vault' } })).toEqual([
      'spec.valueFrom.kind: must be one of env, stored',
    ]);
    expect(fields('HostKey', { valueFrom: {} })).toEqual(['spec.valueFrom.kind']);
    expect(faults('HostKey', { valueFrom: { kind: 'env' } })).toEqual(['spec.valueFrom.env: is required']);
    expect(faults('HostKey', { valueFrom: { kind: 'stored', value: 'x' } })).toEqual([
      'spec.valueFrom.value: unknown field',
    ]);
    expect(faults('HostKey', { valueFrom: 'KEY' })).toEqual(['spec.valueFrom: must be a mapping']);
  });
});

describe('Model', () => {
  test.each(['gpt-4o-*', 'gpt-*-mini', 'a*', 'openai/gpt 4', 'ft:gpt-4o:org::id'])('takes the alias %s', (alias) => {
    expect(faults('Model', { aliases: [alias] })).toEqual([]);
  });

  test.each([
    ['*', 'must not start with *'],
    ['*-mini', 'must not start with *'],
    ['a*b*', 'must contain at most one *'],
    ['a**', 'must contain at most one *'],
    ['-*', 'must have a letter or a digit before the *'],
    ['---', 'must contain a letter or a digit'],
    ['', 'must not be empty'],
  ])('refuses the alias %j', (alias, message) => {
    expect(faults('Model', { aliases: [alias] })).toContain(`spec.aliases[0]: ${message}`);
  });

  test('an alias or snapshot given twice is refused', () => {
    expect(faults('Model', { aliases: ['a', 'b', 'a'] })).toEqual(['spec.aliases[2]: is given twice']);
    const snapshots = [{ name: 'a.1' }, { name: 'a-1' }];
    expect(faults('Model', { snapshots })).toEqual(['spec.snapshots[1].name: is the name of another snapshot']);
  });

  test('a name that leaves no slug can never be asked for', () => {
    expect(faults('Model', {}, { name: '...' })).toEqual(['metadata.name: must contain a letter or a digit']);
    expect(faults('Model', { provider: '--' })).toEqual(['spec.provider: must contain a letter or a digit']);
  });

  test('dates are RFC 3339', () => {
    for (const sunsetDate of ['2027-01-31', '2024-02-29', '2027-01-31T00:00:00Z', '2027-01-31t23:59:59.5+02:00']) {
      expect(faults('Model', { deprecation: { status: 'sunset', sunsetDate } }), sunsetDate).toEqual([]);
    }
    for (const sunsetDate of ['2027-02-30', '31.1.2027', '2027-01-31T00:00:00', '2027-01-31T25:00:00Z', 'soon', '']) {
      expect(fields('Model', { deprecation: { status: 'sunset', sunsetDate } }), sunsetDate).toEqual([
        'spec.deprecation.sunsetDate',
      ]);
    }
    expect(fields('Model', { deprecation: { status: 'old' } })).toEqual(['spec.deprecation.status']);
  });
});

test('Key: expiresAt is a moment with an offset', () => {
  expect(faults('Key', { expiresAt: '2030-01-01T00:00:00+01:00' })).toEqual([]);
  for (const expiresAt of ['2030-01-01', '2030-01-01T00:00:00', '2030-13-01T00:00:00Z', 1893456000]) {
    expect(fields('Key', { expiresAt }), String(expiresAt)).toEqual(['spec.expiresAt']);
  }
  expect(fields('Key', { principal: { kind: 'team', name: 'x' } })).toEqual(['spec.principal.kind']);
});

describe('Policy', () => {
  test.each(['openai', 'openai/gpt-4o', 'openai@local', 'openai/gpt-4o@local', '@local'])(
    'takes the grant %s',
    (grant) => {
      expect(faults('Policy', { models: [grant], rateLimits: [{ models: [grant], rateLimit: 'r' }] })).toEqual([]);
    },
  );

  test.each(['*', 'openai/*', '*/gpt-4o', 'openai@*'])('refuses the grant %s with a message', (grant) => {
    const message = 'must not contain *: leave a segment out to match all of it';
    expect(faults('Policy', { models: [grant] })).toContain(`spec.models[0]: ${message}`);
  });

  test.each(['', '/', '@', '/gpt', 'openai/', 'openai@', 'a/b/c', 'a@b@c', '@a/b', 'a b', 'ä'])(
    'refuses the grant %j',
    (grant) => {
      expect(fields('Policy', { models: [grant] })).toEqual(['spec.models[0]']);
    },
  );

  test('has one of rateLimit and rateLimits, and no host key twice', () => {
    expect(fields('Policy', { rateLimit: 'r', rateLimits: [] })).toEqual(['spec.rateLimits']);
    expect(faults('Policy', { hostKeys: ['a', 'a'] })).toEqual(['spec.hostKeys[1]: is given twice']);
    expect(fields('Policy', { keySelection: 'random' })).toEqual(['spec.keySelection']);
  });
});

describe('RateLimit', () => {
  const rule = (changes: object) => ({ rules: [{ meter: 'requests', amount: 1, window: 1, ...changes }] });

  test('an amount is over 0, a window whole seconds from 1', () => {
    for (const amount of [0, -1, Number.NaN, Number.POSITIVE_INFINITY, '1', null, 2 ** 60]) {
      expect(fields('RateLimit', rule({ amount })), String(amount)).toEqual(['spec.rules[0].amount']);
    }
    for (const window of [0, -1, 1.5, '60', null, undefined]) {
      expect(fields('RateLimit', rule({ window })), String(window)).toEqual(['spec.rules[0].window']);
    }
    expect(faults('RateLimit', rule({ amount: 0.5 }))).toEqual([]);
  });

  test.each([
    'tokens',
    'tokens.input',
    'tokens.output',
    'tokens.cache_read',
    'tokens.cache_creation',
    'tokens.reasoning',
  ])('%s goes with sliding-window and fixed-window only', (meter) => {
    for (const strategy of ['sliding-window', 'fixed-window']) {
      expect(faults('RateLimit', rule({ meter, strategy }))).toEqual([]);
    }
    for (const strategy of ['token-bucket', 'leaky-bucket', 'session-window', undefined]) {
      expect(faults('RateLimit', rule({ meter, strategy }))).toEqual([
        `spec.rules[0].strategy: must be sliding-window or fixed-window for the meter ${meter}`,
      ]);
    }
  });

  test('requests goes with all five strategies', () => {
    for (const strategy of [
      'token-bucket',
      'sliding-window',
      'fixed-window',
      'leaky-bucket',
      'session-window',
      undefined,
    ]) {
      expect(faults('RateLimit', rule({ strategy }))).toEqual([]);
    }
    expect(fields('RateLimit', rule({ strategy: 'none' }))).toEqual(['spec.rules[0].strategy']);
  });

  test('concurrency has a whole amount and needs neither window nor strategy', () => {
    const concurrency = { meter: 'concurrency', amount: 3 };
    expect(faults('RateLimit', { rules: [concurrency] })).toEqual([]);
    expect(faults('RateLimit', { rules: [{ ...concurrency, window: 60, strategy: 'token-bucket' }] })).toEqual([]);
    expect(fields('RateLimit', { rules: [{ ...concurrency, amount: 3.5 }] })).toEqual(['spec.rules[0].amount']);
  });

  test('two rules must differ in meter, window or strategy', () => {
    const requests = { meter: 'requests', amount: 1, window: 60 };
    expect(faults('RateLimit', { rules: [requests, { ...requests, window: 3600 }] })).toEqual([]);
    expect(fields('RateLimit', { rules: [requests, { ...requests, amount: 2, strategy: 'token-bucket' }] })).toEqual([
      'spec.rules[1]',
    ]);
  });
});

describe('Pricing', () => {
  const rate = (changes: object) => ({
    rates: [{ meter: 'tokens.input', unit: 'per_million', amount: 1, ...changes }],
  });

  test('prices requests and every part of a usage event', () => {
    expect([...PRICING_METERS].sort()).toEqual(['requests', ...TOKEN_PARTS.map((part) => `tokens.${part}`)].sort());
    for (const meter of PRICING_METERS) expect(faults('Pricing', rate({ meter }))).toEqual([]);
    for (const meter of ['tokens', 'input', 'tokens.nope']) {
      expect(fields('Pricing', rate({ meter }))).toEqual(['spec.rates[0].meter']);
    }
  });

  test('amounts are 0 or more, tiers whole and not negative', () => {
    expect(faults('Pricing', rate({ amount: 0, aboveTokens: 0 }))).toEqual([]);
    for (const amount of [-0.1, '1', null, Number.NaN])
      expect(fields('Pricing', rate({ amount }))).toEqual(['spec.rates[0].amount']);
    for (const aboveTokens of [-1, 1.5, '1', 2 ** 53]) {
      expect(fields('Pricing', rate({ aboveTokens })), String(aboveTokens)).toEqual(['spec.rates[0].aboveTokens']);
    }
    expect(fields('Pricing', rate({ unit: 'per_thousand' }))).toEqual(['spec.rates[0].unit']);
  });

  test('a meter has one rate a tier; no tier is tier 0', () => {
    const base = { meter: 'tokens.input', unit: 'per_million', amount: 1 };
    expect(faults('Pricing', { rates: [base, { ...base, aboveTokens: 1 }] })).toEqual([]);
    expect(fields('Pricing', { rates: [base, { ...base, aboveTokens: 0 }] })).toEqual(['spec.rates[1]']);
  });

  test('only dollars can be summed', () => {
    expect(faults('Pricing', { currency: 'EUR' })).toEqual([
      'spec.currency: must be USD: costs are accounted in US dollars',
    ]);
  });
});
