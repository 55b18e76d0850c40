import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { describe, expect, test } from 'vitest';

import { ROOT } from '../../support/root.ts';

const FOLDERS = ['lib', 'handlers', 'bin', 'test', 'bench', 'demo', 'scripts', 'docs', 'migrations', 'infra'];
const THIS = relative(ROOT, import.meta.filename);
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** Every file that may cite. This file is left out: its planted citations have to be wrong. */
const files = FOLDERS.flatMap((folder) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' }).map((path) => `${folder}/${path}`),
).filter((path) => /\.(ts|mjs|md|sql|yml)$/.test(path) && !/\/(node_modules|dist)\//.test(path) && path !== THIS);

/** The text of a file as one line: a comment's next line begins with `//`, ` * `, `--` or `#`, which is left out. */
const joined = (text: string) => text.replace(/\s*\n[ \t]*(?:\/\/|\*(?!\/)|--|#)?[ \t]*/g, ' ');

interface Citation {
  file: string;
  heading: string;
  page: string;
}

/** Returns the citations of a text, of the form `"<Heading>" in docs/spec/<page>.md`. */
function citationsOf(file: string, text: string): Citation[] {
  const found = joined(text).matchAll(/"([^"]{1,100})" in (docs\/spec\/[\w-]+\.md)/g);
  return [...found].map(([, heading, page]) => ({ file, heading: heading!, page: page! }));
}

/** Citations of documents that the specification has replaced. */
function outdatedOf(text: string): string[] {
  const numbered = /\b(?:(?:design|behaviour)(?:\.md)?,? sections?|front-doors(?:\.md)?,?(?: sections?)?) \d[\d.]*/gi;
  return [...joined(text).matchAll(numbered)].map(([all]) => all);
}

/** Headings of a page without its code blocks. */
function headingsOf(markdown: string): string[] {
  return [...markdown.replace(/^```[\s\S]*?^```/gm, '').matchAll(/^#{1,6} (.+)$/gm)].map(([, text]) => text!.trim());
}

/** The anchor of a heading, as GitHub makes it. */
function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-');
}

const pages = new Map<string, string>();
for (const path of [...files.filter((path) => path.startsWith('docs/') && path.endsWith('.md')), 'README.md']) {
  pages.set(path, read(path));
}
const spec = [...pages.keys()].filter((path) => path.startsWith('docs/spec/'));

/** The reason why a citation does not resolve; null when it does. */
function faultOf({ file, heading, page }: Citation): string | null {
  const text = pages.get(page);
  if (text === undefined) return `${file}: ${page} does not exist`;
  return headingsOf(text).includes(heading) ? null : `${file}: ${page} has no heading "${heading}"`;
}

/** Relative links of a page whose target does not exist. */
function brokenLinks(path: string, markdown: string): string[] {
  const prose = markdown.replace(/^```[\s\S]*?^```/gm, '').replace(/`[^`\n]*`/g, '');
  const links = [...prose.matchAll(/\]\(([^()\s]+)\)/g)].map(([, target]) => target!);
  return links.filter((link) => {
    if (/^[a-z]+:/.test(link)) return false;
    const [file = '', anchor] = link.split('#');
    const target = file === '' ? path : relative(ROOT, resolve(ROOT, dirname(path), file));
    if (!target.endsWith('.md')) return !existsSync(join(ROOT, target));
    const text = pages.get(target) ?? (existsSync(join(ROOT, target)) ? read(target) : undefined);
    return text === undefined || (anchor !== undefined && !headingsOf(text).map(anchorOf).includes(anchor));
  });
}

describe('citations of the specification', () => {
  const citations = files.flatMap((file) => citationsOf(file, read(file)));

  test('name headings that exist', () => {
    expect(citations.map(faultOf).filter((fault) => fault !== null)).toEqual([]);
  });

  test('are read over the lines of a comment, and a heading that is missing is named', () => {
    const text =
      '/**\n   * See "Lock\n   * order" in docs/spec/engine-guarantees.md. // and "None"\n// in docs/spec/cases.md\n */';
    const found = citationsOf('a.ts', text);
    expect(found.map(({ heading }) => heading)).toEqual(['Lock order', 'None']);
    expect(found.map(faultOf)).toEqual([null, 'a.ts: docs/spec/cases.md has no heading "None"']);
  });

  test('replace every numbered section', () => {
    const left = files.flatMap((file) => outdatedOf(read(file)).map((text) => `${file}: ${text}`));
    expect(left).toEqual([]);
  });

  test('are found in every form that sections were cited in', () => {
    const forms = [
      '(design section 3)',
      'behaviour\n * sections 1, 2',
      'Front-doors section 2: 200 MB',
      'front-doors.md 1',
    ];
    expect(forms.filter((text) => outdatedOf(text).length !== 1)).toEqual([]);
    expect(outdatedOf('RFC 9110 section 14; by design, sections')).toEqual([]);
  });
});

describe('docs/spec', () => {
  test('has headings that are unique in their page', () => {
    const twice = spec.flatMap((path) => {
      const headings = headingsOf(pages.get(path)!).map(anchorOf);
      return headings.filter((one, i) => headings.indexOf(one) !== i).map((one) => `${path}#${one}`);
    });
    expect(spec.length).toBeGreaterThan(6);
    expect(twice).toEqual([]);
  });

  test('has every case that a test names, and a test for every case', () => {
    const known = headingsOf(pages.get('docs/spec/cases.md')!).flatMap(
      (text) => /^Case (\d+): \S/.exec(text)?.[1] ?? [],
    );
    const named = new Set(
      files
        .filter((path) => path.startsWith('test/') && path.endsWith('.test.ts'))
        .flatMap((path) => [...read(path).matchAll(/\bcase (\d+)\b(?!:$)/gm)].map(([, number]) => number!)),
    );
    expect(known.length).toBeGreaterThan(39);
    expect([...named].filter((number) => !known.includes(number))).toEqual([]);
    expect(known.filter((number) => !named.has(number))).toEqual([]);
  });
});

describe('links between documents', () => {
  test.each([...pages.keys()])('of %s resolve', (path) => {
    expect(brokenLinks(path, pages.get(path)!)).toEqual([]);
  });

  test('are broken when the page or the heading is missing', () => {
    const text =
      'a [b](errors.md) [c](errors.md#no-such) [d](none.md) [e](#links) [f](https://x/y) `[g](none.md)`\n## Links';
    expect(brokenLinks('docs/a.md', text)).toEqual(['errors.md#no-such', 'none.md', '#links']);
    expect(
      brokenLinks('docs/spec/cases.md', '[x](../errors.md) [y](#case-12-retry-after-that-is-ignored-or-very-long)'),
    ).toEqual([]);
  });
});
