import { describe, expect, test } from 'vitest';
import { commentsOf, faultsOf, paragraphsOf } from '../../../scripts/style-lint.ts';

const inMarkdown = (text: string) => paragraphsOf(text.split('\n')).flatMap(faultsOf);
const inComments = (source: string) => commentsOf('a.ts', source).flatMap(faultsOf);
const words = (count: number) => Array.from({ length: count }, (_, i) => `w${i}`).join(' ');

describe('the word list', () => {
  test.each([
    'That is no secret.',
    'Null when there is none.',
    'The call gives a number.',
    'The next beat finds it.',
    'Closed by whoever opened it.',
    'Work goes on.',
    'A message comes back.',
    'It says what becomes of an item.',
    'The file is gone.',
    'Postgres is away.',
    'The row is not there.',
    'Replicas are told.',
    'The bucket is asked.',
    'It looks whether there is room.',
    'A worker takes up the batch.',
    'A hung server is taken for a dead one.',
    'A person has to mend it.',
    'Pure but for the clock.',
    'It needs nothing but Node.',
    'WHOEVER WROTE IT.',
  ])('refuses: %s', (text) => {
    expect(inMarkdown(text)).toHaveLength(1);
    expect(inComments(`// ${text}`)).toHaveLength(1);
  });

  test.each([
    'The key is no longer valid.',
    'The worker gives up after three attempts.',
    'It heartbeats; the heartbeat renews the lease.',
    'The item is taken by another worker.',
  ])('accepts: %s', (text) => {
    expect(inMarkdown(text)).toEqual([]);
  });

  test('finds a phrase across a line break and says where it begins and what to write', () => {
    expect(inMarkdown('One.\n\nTwo, and this is\nno fault.')).toEqual([
      { line: 3, message: '"is no": write "is not a", or say what is missing' },
    ]);
  });
});

describe('the length of a sentence', () => {
  test('is 32 words at most', () => {
    expect(inMarkdown(`${words(32)}.`)).toEqual([]);
    expect(inMarkdown(`Short.\n${words(33)}.`)).toMatchObject([
      { line: 2, message: expect.stringMatching(/a sentence of 33 words/) },
    ]);
  });

  test('ends at a period, an exclamation mark, a question mark, and nowhere else', () => {
    for (const mark of ['.', '!', '?', '.)', '."']) expect(inMarkdown(`${words(20)}${mark} ${words(20)}`)).toEqual([]);
    for (const mark of [',', ':', ';', ' -']) expect(inMarkdown(`${words(20)}${mark} ${words(20)}`)).toHaveLength(1);
    expect(inMarkdown(`${words(20)} 0.5 ${words(20)}`)).toHaveLength(1);
  });

  test('counts list items, headings and table cells each by itself', () => {
    const part = words(20);
    expect(inMarkdown(`# ${part}\n${part}\n\n- ${part}\n- ${part}\n1. ${part}\n| ${part} | ${part} |`)).toEqual([]);
    expect(inMarkdown(`- ${part}\n  ${part}`)).toHaveLength(1);
  });

  test('counts inline code and the text of a link, not its target, as one word each', () => {
    expect(inMarkdown(`${words(30)} \`a b c d\` [link](https://a.example/b)`)).toEqual([]);
  });
});

describe('what is not prose', () => {
  test('code, comments and inline code of Markdown are skipped', () => {
    expect(inMarkdown('```sh\nis gone\n```\n\n<!-- is gone -->\n\n<!--\nis gone\n-->\n\n`is gone`')).toEqual([]);
    expect(inMarkdown('```\nis gone\n```\nis gone')).toMatchObject([{ line: 4 }]);
  });

  test('strings, templates and regular expressions of sources are skipped, whatever they look like', () => {
    const source = [
      "const a = '// is gone';",
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the source of a template
      'const b = `/* is gone */ ${a /* is away */} // is gone`;',
      'const c = /[/*]is gone/;',
      'const d = c; // is gone',
    ].join('\n');
    expect(inComments(source)).toMatchObject([
      { line: 2, message: expect.stringMatching(/"is away"/) },
      { line: 4, message: expect.stringMatching(/"is gone"/) },
    ]);
  });

  test('a picture in a comment is skipped', () => {
    expect(inComments(`/*\n * idle ──► is gone\n * a    is gone\n */`)).toEqual([]);
  });
});

describe('comments', () => {
  test('lines below each other are one text, comments behind code are not', () => {
    expect(inComments(`// ${words(20)}\n// ${words(20)}\nf();`)).toMatchObject([{ line: 1 }]);
    expect(inComments(`f(); // ${words(20)}\ng(); // ${words(20)}`)).toEqual([]);
    expect(inComments(`/**\n * ${words(20)}\n *\n * ${words(20)}\n */\nf();`)).toEqual([]);
  });

  test('each one is read once, at its own line, wherever it is', () => {
    const source =
      '#!/usr/bin/env node\n/** is gone */\nf(/* is gone */ 1, // is gone\n);\nclass A {\n  // is gone\n}\n// is gone';
    expect(inComments(source).map(({ line }) => line)).toEqual([2, 3, 3, 6, 8]);
  });
});
