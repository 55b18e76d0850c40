import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { z } from 'zod';
import { CONTROL_ENDPOINTS } from '../../../handlers/control.ts';
import { KINDS, PLURALS, SPECS } from '../../../lib/catalog/documents/kinds.ts';
import { parseCatalog } from '../../../lib/catalog/documents/yaml.ts';
import { ROOT } from '../../support/root.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const DOC = read('docs/catalogue.md');
const FULL = read('test/support/catalog/full.yaml');

const fieldsOf = (schema: z.ZodObject) => Object.entries(schema.shape);

test('every YAML example of the document is good, and the last one is the file that a test applies', () => {
  const blocks = [...DOC.matchAll(/```yaml\n([\s\S]*?)```/g)].map((match) => match[1]!);
  expect(blocks).toHaveLength(2);
  for (const text of blocks) expect(parseCatalog([{ file: 'catalogue.md', text }]).faults).toEqual([]);
  expect(blocks.at(-1)).toBe(FULL);
});

test('the example sets every field of every kind', () => {
  const { documents } = parseCatalog([{ file: 'full.yaml', text: FULL }]);
  for (const kind of KINDS) {
    const specs = documents.filter((document) => document.kind === kind).map((document) => document.spec);
    const set = new Set(specs.flatMap((spec) => Object.keys(spec)));
    expect([...set].sort(), kind).toEqual(Object.keys(SPECS[kind].shape).sort());
  }
});

test.each(KINDS)('%s: the document has its plural and every field, with a ? where it may be left out', (kind) => {
  expect(DOC).toContain(`${kind} (\`${PLURALS[kind]}\`)`);
  const section = DOC.slice(DOC.indexOf(`${kind} (\`${PLURALS[kind]}\`)`)).split('\n### ')[0]!;
  for (const [name, schema] of fieldsOf(SPECS[kind])) {
    expect(section, `${kind}.${name}`).toContain(`\`${name}${schema.safeParse(undefined).success ? '?' : ''}\``);
  }
});

test('the document has every call of the control API', () => {
  for (const { method, pattern } of CONTROL_ENDPOINTS) {
    if (!pattern.startsWith('/api/') || pattern.startsWith('/api/usage/')) continue;
    expect(DOC).toContain(`\`${method} ${pattern}\``);
  }
});
