import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ROOT } from '../../support/root.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const squeeze = (text: string) => text.replace(/\s+/g, ' ');

const doc = read('docs/state-machine.md');
const schema = read('migrations/0001_core.sql') + read('migrations/0009_surfaces.sql');
const unsent = read('lib/usage/unsent.sql.ts');

/** Every named statement of a *.sql.ts file with the text of its file up to the next one, shared fragments put in. */
function statements(): Map<string, string> {
  const found = new Map<string, string>();
  for (const file of readdirSync(join(ROOT, 'lib'), { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.sql.ts')) continue;
    const source = read(`lib/${file}`);
    const constants = new Map(
      [...source.matchAll(/^const ([A-Z_]+) = [`']([\s\S]*?)[`'];$/gm)].map((m) => [m[1]!, m[2]!]),
    );
    const names = [...source.matchAll(/name: '(\w+)'/g)];
    names.forEach((match, i) => {
      let text = source.slice(match.index, names[i + 1]?.index).split('\n}\n')[0]!; // to the end of its function
      for (const [, constant] of text.matchAll(/text(?:: |\b)([A-Z_]+)\b/g)) text += constants.get(constant!) ?? '';
      if (/\$\{(COUNT_DOWN|RECORD_UNSENT)\}/.test(text)) text += unsent;
      // Parameters that have names in the source have them in the document too.
      found.set(match[1]!, squeeze(text.replace(/\$\{INPUT\.sql\.(\w+)\}/g, ':$1')));
    });
  }
  return found;
}

interface Arrow {
  from: string[];
  to: string[];
  statement: string;
  guards: string[];
}

/** The rows of the two tables of arrows; code spans are what is held against the SQL. */
function arrows(section: string): Arrow[] {
  const text = doc.slice(doc.indexOf(`## ${section}\n`)).split(/\n## /)[0]!;
  const spans = (cell: string) => [...cell.matchAll(/`([^`]+)`/g)].map((m) => m[1]!);
  return text
    .split('\n')
    .filter((line) => line.startsWith('|') && !line.startsWith('|---') && !line.startsWith('| From'))
    .map((line) => line.split(/(?<!\\)\|/).map((cell) => cell.trim()))
    .map(([, from, to, , statement, guard]) => ({
      from: spans(from!),
      to: spans(to!),
      statement: spans(statement!)[0]!,
      guards: spans(guard!),
    }));
}

const known = statements();
const items = arrows('Items');
const batches = arrows('Batches');
const openai = arrows('OpenAI batches');

describe('docs/state-machine.md', () => {
  test('has arrows for all machines', () => {
    expect(items.length).toBeGreaterThan(8);
    expect(batches.length).toBeGreaterThan(4);
    expect(openai.length).toBeGreaterThan(7);
  });

  test.each([...items, ...batches, ...openai].filter(({ statement }) => !statement.startsWith('insert_')))(
    'tells the guard of $statement as it is ($guards)',
    ({ statement, guards }) => {
      expect(known.get(statement), `statement ${statement}`).toBeDefined();
      expect(guards).not.toEqual([]);
      for (const guard of guards) expect(known.get(statement)).toContain(squeeze(guard));
    },
  );

  test('names only statements that exist', () => {
    const named = [...doc.matchAll(/`([a-z]+(?:_[a-z]+)+)`/g)].map((m) => m[1]!);
    const columns = [...schema.matchAll(/^(?: {2}(?:constraint )?|create table )([a-z_]+) /gm)].map((m) => m[1]!);
    const unknown = named.filter((name) => !known.has(name) && !columns.includes(name) && name !== 'in_progress');
    expect(unknown).toEqual([]);
  });

  test('names every statement that moves the state of an item or the status of a batch', () => {
    const moving = [...known].filter(
      ([, text]) => /update batch_items i set[^;`]*?\bstate =/.test(text) || /set status = /.test(text),
    );
    expect(moving.length).toBeGreaterThan(5);
    moving.push(...[...known].filter(([, text]) => /update openai_batches (o )?set/.test(text)));
    const told = new Set([...items, ...batches, ...openai].map(({ statement }) => statement));
    expect(moving.map(([name]) => name).filter((name) => !told.has(name))).toEqual([]);
  });

  test('knows the states of the schema and no others, and lets nothing leave a final one', () => {
    const states = /create type item_state as enum \(([^)]+)\)/.exec(schema)![1]!.replaceAll("'", '').split(', ');
    const named = new Set(items.flatMap(({ from, to }) => [...from, ...to]));
    expect([...named].sort()).toEqual(states.sort());
    const left = new Set(items.flatMap(({ from }) => from));
    expect([...left].sort()).toEqual(['available', 'running']);
  });

  test('lists the named constraints of batches and items, all of them', () => {
    const constraints = [...schema.matchAll(/constraint ((?:item|batch|openai_batch)_\w+)/g)].map((m) => m[1]!);
    const listed = [...doc.matchAll(/^\| `((?:item|batch|openai_batch)_\w+)` \|/gm)].map((m) => m[1]!);
    expect(listed.sort()).toEqual(constraints.sort());
  });
});
