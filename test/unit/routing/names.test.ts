import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { cutSlug, slug, wholeSlug, wildcardSlugs } from '../../../lib/model/slug.ts';
import { buildNames, resolveName } from '../../../lib/routing/names.ts';
import { type CatalogSketch, catalogOf } from '../../support/routing-catalog.ts';

const hosts = [{ name: 'local' }, { name: 'azure' }, { name: 'off' }];
const resolve = (sketch: CatalogSketch, name: string) => resolveName(buildNames(catalogOf({ hosts, ...sketch })), name);

describe('slug', () => {
  test.each([
    ['openai/gpt-5.4', 'openai-gpt-5-4'],
    ['openai-gpt-5-4', 'openai-gpt-5-4'],
    ['  GPT_4o [1M]!', 'gpt-4o-1m'],
    ['???', ''],
    ['', ''],
    ['é', ''],
  ])('of %j is %j', (text, expected) => {
    expect(slug(text)).toBe(expected);
  });

  test('is its own slug, at most 63 of [a-z0-9-], trimmed, for any text', () => {
    fc.assert(
      fc.property(fc.string({ maxLength: 200, unit: 'binary' }), (text) => {
        const once = slug(text);
        expect(once).toMatch(/^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$/);
        expect(once.length).toBeLessThanOrEqual(63);
        expect(slug(once)).toBe(once);
      }),
    );
  });
});

describe('names', () => {
  const gpt: CatalogSketch = {
    models: [
      {
        name: 'gpt-4o',
        aliases: ['nick', 'ft:gpt-4o:*:acme', 'gpt-4o-*'],
        snapshots: [{ name: 'gpt-4o-2024-11-20' }, { name: 'gpt-4o-old', upstreamName: 'gpt-4o-0513' }],
      },
    ],
    bindings: [
      { model: 'gpt-4o', host: 'local' },
      { model: 'gpt-4o', host: 'off', enabled: false },
    ],
  };

  test.each([
    ['gpt-4o', 'name', null, 'gpt-4o'],
    ['GPT 4o', 'name', null, 'gpt-4o'],
    ['openai/gpt-4o', 'name', null, 'gpt-4o'],
    ['openai-gpt-4o', 'name', null, 'gpt-4o'],
    ['gpt-4o@local', 'name', 'local', 'gpt-4o'],
    ['openai/gpt-4o@local', 'name', 'local', 'gpt-4o'],
    ['gpt-4o-2024-11-20', 'snapshot', null, 'gpt-4o-2024-11-20'],
    ['openai/gpt-4o-2024-11-20@local', 'snapshot', 'local', 'gpt-4o-2024-11-20'],
    ['gpt-4o-old', 'snapshot', null, 'gpt-4o-0513'],
    ['nick', 'alias', null, 'nick'],
    ['NICK', 'alias', null, 'NICK'],
    ['openai/Nick', 'alias', null, 'Nick'],
    ['Nick@local', 'alias', 'local', 'Nick'],
    ['openai/nick@local', 'alias', 'local', 'nick'],
    ['openai-nick-local', 'alias', 'local', 'nick'],
    ['ft:GPT-4o:my_run:acme', 'wildcard', null, 'ft:GPT-4o:my_run:acme'],
    ['gpt-4o-realtime', 'wildcard', null, 'gpt-4o-realtime'],
  ])('%j is found by %s, pins %j and goes upstream as %j', (requested, via, pinned, wireName) => {
    expect(resolve(gpt, requested)).toMatchObject({ model: { name: 'gpt-4o' }, via, pinned, wireName });
  });

  test.each([
    ['gpt-5', 'an unknown name'],
    ['', 'an empty name'],
    ['!!!', 'a name with an empty slug'],
    ['gpt-4o@off', 'a host whose binding is disabled'],
    ['gpt-4o@nowhere', 'a host that is not there'],
    ['gpt-4o-realtime@local', 'a wildcard with a host'],
    ['gpt-4ox', 'a name that only begins like the wildcard'],
    ['openai/gpt-4o-realtime', 'a wildcard with a provider'],
    ['gpt-4o-'.repeat(1000), 'a name longer than 1024 characters'],
  ])('%j is not found: %s', (requested) => {
    expect(resolve(gpt, requested)).toBeNull();
  });

  test('a model name wins over a snapshot, a provider form, a pinned form, an alias and a wildcard of the same slug', () => {
    const winner = { name: 'x-local' };
    const rivals = [
      { name: 'a', snapshots: [{ name: 'x.local' }] },
      { name: 'local', provider: 'x' },
      { name: 'x' },
      { name: 'b', aliases: ['x:local'] },
      { name: 'c', aliases: ['x*'] },
    ];
    const bindings = [{ model: 'x', host: 'local' }];
    for (let from = 0; from < rivals.length; from++) {
      const models = from === 0 ? [...rivals, winner] : rivals.slice(from - 1);
      const expected = from === 0 ? 'x-local' : rivals[from - 1]!.name;
      expect(resolve({ models, bindings }, 'x-local')?.model.name).toBe(expected);
    }
  });

  test('names that share their first 63 characters stay apart', () => {
    const long = 'm'.repeat(70);
    const models = [{ name: `${long}-a` }, { name: `${long}-b` }];
    expect(resolve({ models }, `${long}-b`)?.model.name).toBe(`${long}-b`);
    expect(resolve({ models }, `openai/${long}.B`)?.model.name).toBe(`${long}-b`);
  });

  test('the order of the catalogue does not matter', () => {
    const models = [
      { name: 'b', snapshots: [{ name: 'same' }] },
      { name: 'a', snapshots: [{ name: 'same' }] },
    ];
    expect(resolve({ models }, 'same')?.model.name).toBe('a');
    expect(resolve({ models: models.reverse() }, 'same')?.model.name).toBe('a');
  });
});

describe('wildcards', () => {
  test('the longest literal prefix wins, then the suffix, then the model name', () => {
    const models = [
      { name: 'z', aliases: ['gpt-*'] },
      { name: 'y', aliases: ['gpt-4-*'] },
      { name: 'x', aliases: ['gpt-4-*-b'] },
      { name: 'w', aliases: ['gpt-4-*'] },
    ];
    expect(resolve({ models }, 'gpt-4-a-b')?.model.name).toBe('w');
    expect(resolve({ models }, 'gpt-5-a-b')?.model.name).toBe('z');
  });

  test('agree with a naive search in the order of the rule, for any patterns and names', () => {
    const piece = fc.string({ unit: fc.constantFrom('a', 'b', '-', '.'), maxLength: 4 });
    const pattern = fc.tuple(piece, piece).map(([before, after]) => `a${before}*${after}`);
    const models = fc.array(fc.array(pattern, { maxLength: 3 }), { minLength: 1, maxLength: 6 });
    fc.assert(
      fc.property(
        models,
        fc.string({ unit: fc.constantFrom('a', 'b', '-', '.'), maxLength: 9 }),
        (lists, requested) => {
          const sketch = { models: lists.map((aliases, i) => ({ name: `model${i}`, aliases })) };
          const rules = lists
            .flatMap((aliases, i) => aliases.map((alias) => ({ name: `model${i}`, alias })))
            .map(({ name, alias }) => ({ name, ...wildcardSlugs(...(alias.split('*') as [string, string])) }))
            .sort(
              (a, b) =>
                b.prefix.length - a.prefix.length ||
                order(a.prefix, b.prefix) ||
                order(a.suffix, b.suffix) ||
                order(a.name, b.name),
            );
          const key = wholeSlug(requested);
          const expected = rules.find(
            ({ prefix, suffix }) =>
              key.length >= prefix.length + suffix.length && key.startsWith(prefix) && key.endsWith(suffix),
          );
          expect(resolve(sketch, requested)?.model.name).toBe(key === '' ? undefined : expected?.name);
        },
      ),
      { numRuns: 2000 },
    );
  });

  test('keep the dash at the star', () => {
    expect(wildcardSlugs('claude-5[', ']')).toEqual({ prefix: 'claude-5-', suffix: '' });
    expect(wildcardSlugs('ft:', ':acme')).toEqual({ prefix: 'ft-', suffix: '-acme' });
    expect(cutSlug(`${'a'.repeat(62)}-b`)).toBe('a'.repeat(62));
  });
});

function order(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
