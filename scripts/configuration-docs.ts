import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { ENVIRONMENT } from '../lib/app/config.ts';

// Writes docs/configuration.md from the schema that validates the environment; `--check` fails when the file differs.

const FILE = fileURLToPath(new URL('../docs/configuration.md', import.meta.url));

const HEAD = `# Configuration

<!-- Generated from lib/app/config.ts by \`npm run docs\`. Edit that file, not this one. -->

Everything is read from the environment and checked at start; a bad value stops the start with one sentence that names
it. An empty value counts as unset.

| Name | Unit | Default | Range | What it does |
|---|---|---|---|---|
`;

// What zod can tell about one variable, and what its `meta` adds.
const variable = z.object({
  default: z.union([z.string(), z.number()]).optional(),
  enum: z.array(z.string()).optional(),
  minimum: z.number().optional(),
  maximum: z.number().optional(),
  anyOf: z.array(z.record(z.string(), z.unknown())).optional(),
  pattern: z.string().optional(),
  unit: z.string().optional(),
  about: z.string(),
  secret: z.boolean().optional(),
});

function render(): string {
  const schema = z.toJSONSchema(ENVIRONMENT, { io: 'output', unrepresentable: 'any' });
  const rows = Object.entries(schema.properties ?? {}).map(([name, property]) => {
    const entry = variable.parse(property);
    const fallback = entry.default === undefined || entry.default === '' ? '' : `\`${entry.default}\``;
    const cells = [`\`${name}\``, entry.unit ?? '', fallback, range(entry), entry.about];
    return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |\n`;
  });
  return HEAD + rows.join('');
}

function range(entry: z.infer<typeof variable>): string {
  if (entry.enum) return entry.enum.map((value) => `\`${value}\``).join(', ');
  if (entry.anyOf) {
    const parts = entry.anyOf.map((part) => ('const' in part ? `\`${String(part.const)}\`` : bounds(part)));
    return parts.join(' or ');
  }
  return bounds(entry);
}

function bounds(part: { minimum?: unknown; maximum?: unknown }): string {
  if (typeof part.minimum !== 'number' || typeof part.maximum !== 'number') return '';
  return `${part.minimum} to ${part.maximum}`;
}

const wanted = render();
if (process.argv.includes('--check')) {
  const found = await readFile(FILE, 'utf8').catch(() => '');
  if (found !== wanted) {
    process.stderr.write('docs/configuration.md is not what lib/app/config.ts says: run npm run docs\n');
    process.exitCode = 1;
  }
} else {
  await writeFile(FILE, wanted);
}
