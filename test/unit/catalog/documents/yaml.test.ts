import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { KINDS } from '../../../../lib/catalog/documents/kinds.ts';
import { parseCatalog } from '../../../../lib/catalog/documents/yaml.ts';
import { readCatalog } from '../../../../lib/catalog/read.ts';

const parse = (text: string) => parseCatalog([{ file: 'c.yaml', text }]);
const messages = (text: string) => parse(text).faults.map((f) => [f.document, f.message]);
const team = (name: string) => `kind: Team\nmetadata: {name: ${name}}\n`;

describe('YAML', () => {
  test('several documents, empty ones counted but passed over', () => {
    const { documents, faults } = parse(`---\n---\n${team('a')}---\n# nothing\n---\n${team('b')}...\n`);
    expect(faults).toEqual([]);
    expect(documents.map((d) => [d.name, d.document])).toEqual([
      ['a', 2],
      ['b', 4],
    ]);
    for (const text of ['', '\n', '# only a comment\n', '---\n', '\ufeff'])
      expect(parse(text)).toMatchObject({ documents: [], faults: [] });
  });

  test('JSON, comments, anchors, CRLF and a byte order mark are YAML', () => {
    expect(parse('{"kind":"Team","metadata":{"name":"a"}}').documents).toHaveLength(1);
    expect(parse(`\ufeff${team('a').replaceAll('\n', '\r\n')}`).documents).toHaveLength(1);
    const anchored =
      'kind: Policy\nmetadata: {name: a}\nspec: {models: &m [openai], rateLimits: [{models: *m, rateLimit: r}]}';
    expect(parse(anchored).documents[0]!.spec).toMatchObject({ rateLimits: [{ models: ['openai'] }] });
  });

  test('dates and versions stay text', () => {
    const text =
      'kind: Model\nmetadata: {name: m}\nspec: {provider: p, deprecation: {status: sunset, sunsetDate: 2027-01-31}}';
    expect(parse(text)).toMatchObject({ faults: [] });
  });

  test('a key given twice is a fault with its line, and nothing of the text is repeated', () => {
    expect(messages('kind: Team\nkind: Host\nmetadata: {name: a}')).toEqual([
      [1, 'is not valid YAML at line 2, column 1: a key is given twice'],
    ]);
    const secret = parse('kind: HostKey\nspec:\n  value: "topsecret\n');
    expect(secret.faults.length).toBeGreaterThan(0);
    expect(JSON.stringify(secret)).not.toContain('topsecret');
  });

  test('one faulty document does not hide the faults of the others', () => {
    const { documents, faults } = parse(
      `${team('a')}---\nkind: Host\nmetadata: {name: h}\n---\nfoo: 1\n---\n${team('b')}`,
    );
    expect(documents.map((d) => d.name)).toEqual(['a', 'b']);
    expect(new Set(faults.map((f) => f.document))).toEqual(new Set([2, 3]));
  });

  test('a bomb of aliases, an alias of itself and deep nesting are refused, quickly', () => {
    const bomb = [
      'a: &a [x,x,x,x,x,x,x,x,x]',
      ...'bcdefghi'.split('').map((c, i) => `${c}: &${c} [${`*${'abcdefghi'[i]},`.repeat(9)}]`),
    ];
    expect(messages(bomb.join('\n'))).toEqual([[1, 'uses too many aliases']]);
    expect(messages('kind: Team\nspec: &a {b: *a}')).toEqual([[1, 'has an alias that contains itself']]);
    expect(messages(`a: ${'['.repeat(200)}${']'.repeat(200)}`)).toEqual([[1, 'is nested too deeply']]);
    expect(messages(`a: ${'['.repeat(100_000)}`).length).toBeGreaterThan(0);
    expect(messages(`a: &a 1\nb: [${'*a,'.repeat(5000)}]`)).toEqual([[1, 'uses too many aliases']]);
    expect(messages(`a: &a [${'1,'.repeat(2000)}]\nb: [${'*a,'.repeat(100)}]`)).toEqual([[1, 'uses too many aliases']]);
    expect(messages('kind: Team\nspec: {a: *b, c: &b 1}')).toEqual([[1, 'has an alias without its anchor']]);
    expect(messages('? {kind: Team}\n: 1')).toEqual([[1, 'has a key that is not a plain value']]);
  });

  // To compare each key with all others took minutes, and so did the search of an anchor for each alias.
  test('many keys and anchors are read in time that grows with their number alone', { timeout: 90_000 }, () => {
    const many = (count: number, line: (i: number) => string) =>
      Array.from({ length: count }, (_, i) => line(i)).join('');
    const labels = `kind: Team\nmetadata:\n  name: a\n  labels:\n${many(50_000, (i) => `    k${i}: v\n`)}`;
    expect(parse(labels)).toMatchObject({ documents: [{ name: 'a' }], faults: [] });
    const anchors = `a:\n${many(25_000, (i) => `- &a${i} x\n`)}b: &b\n${many(999, (i) => `- *a${i}\n`)}c: *b\n`;
    const { faults } = parse(`${team('b')}spec:\n${anchors.replaceAll(/^/gm, '  ')}`);
    expect(faults.map(({ field }) => field)).toEqual(['spec.a', 'spec.b', 'spec.c']);
    expect(messages(many(1000, () => 'k: 1\n'))).toHaveLength(999);
  });

  test('an alias stands for the last anchor of its name before it', () => {
    const text = 'kind: Policy\nmetadata: {name: a}\nspec: {models: [&x openai, &x anthropic], hostKeys: [*x]}';
    expect(parse(text).documents[0]?.spec).toEqual({
      models: ['openai', 'anthropic'],
      hostKeys: ['anthropic'],
    });
  });

  test('tags that are not plain data are refused', () => {
    for (const tag of ['!!js/function', '!custom', '!!binary']) {
      expect(parse(`kind: Team\nmetadata: {name: ${tag} "aGk="}`).faults.length, tag).toBeGreaterThan(0);
    }
  });

  test('anything at all gives documents or faults, never a throw', () => {
    const anything = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 200 }),
      fc.string({ unit: fc.constantFrom(...'{}[]:,-&*!|>\'"%@`#?\n \t01ab~<'), maxLength: 60 }),
      fc.anything({ withNullPrototype: false }).map((value) => JSON.stringify(value) ?? ''),
    );
    fc.assert(
      fc.property(anything, (text) => {
        const { documents, faults } = parse(text);
        for (const fault of faults) expect(fault.message).not.toBe('');
        expect(documents).toEqual([]);
      }),
      { numRuns: 500 },
    );
  });

  test('a document with one random value anywhere is good, or a fault names a field', () => {
    const value = fc.oneof(
      fc.jsonValue({ maxDepth: 2 }),
      fc.constantFrom('\u0000', '\ud800', 'a\r\nb', '*', Number.POSITIVE_INFINITY, -0),
    );
    const key = fc.oneof(
      fc.constantFrom(
        'kind',
        'name',
        'baseURL',
        'host',
        'valueFrom',
        'value',
        'provider',
        'aliases',
        'snapshots',
        'models',
      ),
      fc.constantFrom('rules', 'rates', 'rateLimits', 'principal', 'expiresAt', '__proto__', 'constructor', 'enabled'),
      fc.string({ maxLength: 10 }),
    );
    const document = fc.record({
      kind: fc.oneof({ weight: 9, arbitrary: fc.constantFrom<unknown>(...KINDS) }, { weight: 1, arbitrary: value }),
      metadata: fc.oneof(fc.constant({ name: 'x' }), fc.dictionary(key, value), value),
      spec: fc.oneof(fc.dictionary(key, value, { maxKeys: 4 }), value),
    });
    fc.assert(
      fc.property(document, (raw) => {
        const { documents, faults } = parse(stringify(raw));
        expect(documents.length + faults.length).toBeGreaterThan(0);
        for (const fault of faults) {
          if (!/YAML|alias|nested/.test(fault.message)) expect(fault.field).toMatch(/^(kind|metadata|spec)/);
        }
      }),
      { numRuns: 500 },
    );
  });
});

describe('files', () => {
  test('a directory gives its YAML files by name; what cannot be read is a fault', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'relay-catalog-'));
    try {
      await writeFile(join(folder, 'b.yml'), team('b'));
      await writeFile(join(folder, 'a.yaml'), team('a'));
      await writeFile(join(folder, 'c.json'), 'not read');
      await writeFile(join(folder, '.hidden.yaml'), 'not: read');
      await mkdir(join(folder, 'd.yaml'));
      await writeFile(join(folder, 'real'), team('linked'));
      await symlink(join(folder, 'real'), join(folder, 'z.yaml'));
      const source = await readCatalog([folder, join(folder, 'a.yaml')]);
      expect(source.faults).toEqual([]);
      expect(source.documents.map((d) => d.name)).toEqual(['a', 'b', 'linked', 'a']);

      await writeFile(join(folder, 'latin1.yaml'), Buffer.from([0x6b, 0xe4]));
      const missing = await readCatalog([folder, join(folder, 'nope')]);
      expect(missing.faults.map((f) => [f.file, f.message])).toEqual([
        [join(folder, 'latin1.yaml'), 'is not UTF-8'],
        [join(folder, 'nope'), 'cannot be read: ENOENT'],
      ]);
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});
