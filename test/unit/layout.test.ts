import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';

// How the folders of the service are kept readable: no folder that needs a search, few files that need a neighbour to
// make sense, and one style of names.

const ROOT = join(import.meta.dirname, '../..');
const MOST_FILES = 19;
const MOST_HANDLERS = 24;
const SHORT_LINES = 30;
const MOST_SHORT_SHARE = 0.15;

const sources = (folder: string) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(ts|mjs)$/.test(name))
    .map((name) => join(folder, name));
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8');

const lib = sources('lib');
const handlers = sources('handlers');

describe('the folders of the service', () => {
  test('hold few enough files to be read at a glance', () => {
    const sizes = new Map<string, number>();
    for (const file of lib) sizes.set(dirname(file), (sizes.get(dirname(file)) ?? 0) + 1);
    expect([...sizes].filter(([, size]) => size > MOST_FILES)).toEqual([]);
    expect(handlers.length).toBeLessThanOrEqual(MOST_HANDLERS);
  });

  test('hold few files that are a page of their own for less than a page', () => {
    const short = lib.filter((file) => read(file).split('\n').length - 1 < SHORT_LINES);
    expect(short.length / lib.length, short.join(' ')).toBeLessThanOrEqual(MOST_SHORT_SHARE);
  });

  test('name files in one style', () => {
    const odd = [...lib, ...handlers].filter(
      (file) => !/^[a-z0-9]+(-[a-z0-9]+)*(\.sql)?\.(ts|mjs)$/.test(basename(file)),
    );
    expect(odd).toEqual([]);
  });
});
