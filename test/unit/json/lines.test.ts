import { Buffer } from 'node:buffer';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { lineScanner } from '../../../lib/json/lines.ts';

type Line = { text: string; line: number };

function linesOf(bytes: Buffer, cuts: readonly number[] = []): { found: Line[]; lines: number } {
  const found: Line[] = [];
  const onLine = (offset: number, length: number, line: number) => {
    found.push({ text: bytes.toString('utf8', offset, offset + length), line });
  };
  const scanner = lineScanner();
  const places = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  for (let i = 1; i < places.length; i++) scanner.push(bytes.subarray(places[i - 1]!, places[i]!), onLine);
  return { found, lines: scanner.end(onLine) };
}

/** The rule in its plainest form. */
function expected(text: string): { found: Line[]; lines: number } {
  const all = text.replace(/^\ufeff/, '').split('\n');
  if (all.at(-1) === '') all.pop();
  const found = all
    .map((line, i) => ({ text: line.replace(/^[ \t\r]+|[ \t\r]+$/g, ''), line: i + 1 }))
    .filter(({ text }) => text !== '');
  return { found, lines: all.length };
}

describe('lines of JSONL', () => {
  test.each([
    ['two newlines at the end', '{"a":1}\n{"b":2}\n\n', ['1 {"a":1}', '2 {"b":2}'], 3],
    ['blank lines between', '\n{"a":1}\n\n \t\n{"b":2}\n', ['2 {"a":1}', '5 {"b":2}'], 5],
    ['CRLF ends', '{"a":1}\r\n\r\n{"b":2}\r\n', ['1 {"a":1}', '3 {"b":2}'], 3],
    ['no last newline', '{"a":1}\n{"b":2}', ['1 {"a":1}', '2 {"b":2}'], 2],
    ['a last line of CR alone', '{"a":1}\n\r', ['1 {"a":1}'], 2],
    ['a byte order mark', '\ufeff{"a":1}\n', ['1 {"a":1}'], 1],
    ['a byte order mark and nothing else', '\ufeff', [], 0],
    ['a byte order mark in the second line', '1\n\ufeff2', ['1 1', '2 \ufeff2'], 2],
    ['characters that start like a mark', '\ufe81\n\ufec0x', ['1 \ufe81', '2 \ufec0x'], 2],
    ['raw U+2028 and U+2029', '"a\u2028b\u2029c"\n"d"', ['1 "a\u2028b\u2029c"', '2 "d"'], 2],
    ['a CR within a line', 'a\rb\n', ['1 a\rb'], 1],
    ['nothing', '', [], 0],
    ['one newline', '\n', [], 1],
  ])('%s', (_, text, lines, total) => {
    const bytes = Buffer.from(text);
    const found = linesOf(bytes);
    expect(found.found.map(({ line, text }) => `${line} ${text}`)).toEqual(lines);
    expect(found.lines).toBe(total);
  });

  test('are the same by the plain rule, in one buffer and in pieces cut anywhere', () => {
    const part = fc.constantFrom('\n', '\n', '\r\n', '\r', ' ', '\t', '{"a":1}', 'é', '\u2028', '\ufeff', '\ufe81');
    fc.assert(
      fc.property(fc.array(part, { maxLength: 14 }), fc.array(fc.nat(), { maxLength: 6 }), (parts, cuts) => {
        const text = parts.join('');
        const bytes = Buffer.from(text);
        expect(linesOf(bytes)).toEqual(expected(text));
        expect(linesOf(bytes, cuts)).toEqual(expected(text));
      }),
      { numRuns: 2000 },
    );
  });

  test('a file that is cut within its byte order mark keeps its bytes as a line', () => {
    const bytes = Buffer.from([0xef, 0xbb]);
    expect(linesOf(bytes)).toEqual({ found: [{ text: bytes.toString(), line: 1 }], lines: 1 });
  });
});
