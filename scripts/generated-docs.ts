import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { ENVIRONMENT } from '../lib/app/config.ts';

// Writes the documents that follow from the code: docs/configuration.md from the schema that validates the environment,
// and the table of layers in docs/development.md from the rule that checks imports. `--check` fails if a file differs.

const pathOf = (file: string) => fileURLToPath(new URL(`../${file}`, import.meta.url));

const HEAD = `# Configuration

<!-- Generated from lib/app/config.ts by \`npm run docs\`. Edit that file, not this one. -->

The service reads all settings from the environment and checks them at start. A bad value stops the start with one sentence
that names the variable. An empty value counts as unset.

| Name | Unit | Default | Range | What it does |
|---|---|---|---|---|
`;

// The facts that zod knows about one variable, and those that its `meta` adds.
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

function configuration(): string {
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

const TABLE = /(<!-- layers: .*? -->\n)[\s\S]*?(<!-- end of layers -->)/;

async function development(): Promise<string> {
  const rules = (await import(new URL('../.dependency-cruiser.mjs', import.meta.url).href)) as {
    LAYERS: { folders: string[]; about: string }[];
  };
  const rows = rules.LAYERS.toReversed().map(
    ({ folders, about }) => `| ${folders.map((folder) => `\`${folder}\``).join(', ')} | ${about} |\n`,
  );
  const table = `\n| Folder | What |\n|---|---|\n${rows.join('')}\n`;
  return (await readFile(pathOf('docs/development.md'), 'utf8')).replace(TABLE, (_, start, end) => start + table + end);
}

const DOCUMENTS = [
  { file: 'docs/configuration.md', source: 'lib/app/config.ts', wanted: configuration() },
  { file: 'docs/development.md', source: '.dependency-cruiser.mjs', wanted: await development() },
];

for (const { file, source, wanted } of DOCUMENTS) {
  if (!process.argv.includes('--check')) {
    await writeFile(pathOf(file), wanted);
  } else if ((await readFile(pathOf(file), 'utf8').catch(() => '')) !== wanted) {
    process.stderr.write(`${file} is not what ${source} says: run npm run docs\n`);
    process.exitCode = 1;
  }
}
