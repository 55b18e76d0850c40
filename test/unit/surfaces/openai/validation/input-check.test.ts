import { Buffer } from 'node:buffer';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../../../lib/base/turns.ts';
import { MAX_MEMBERS } from '../../../../../lib/json/members.ts';
import { MAX_FAULTS } from '../../../../../lib/surfaces/openai/validation/faults.ts';
import {
  type CheckedInput,
  inputCheck,
  MAX_LINE_BYTES,
} from '../../../../../lib/surfaces/openai/validation/input-check.ts';

const CHAT = '/v1/chat/completions';
const MAX_REQUESTS = 50_000;

function check(
  input: string | Buffer,
  cuts: readonly number[] = [],
  endpoint = CHAT,
): CheckedInput & { customIds: string } {
  const bytes = Buffer.from(input as string);
  const checking = inputCheck(endpoint);
  const ids: Buffer[] = [];
  const places = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  for (let i = 1; i < places.length; i++) {
    atOnce(checking.push(bytes.subarray(places[i - 1]!, places[i]!)));
    ids.push(checking.takeCustomIds());
  }
  const checked = atOnce(checking.end());
  ids.push(checking.takeCustomIds());
  return { ...checked, customIds: Buffer.concat(ids).toString() };
}

function line(id: unknown, more: object = {}): string {
  return JSON.stringify({ custom_id: id, method: 'POST', url: CHAT, body: { model: 'm' }, ...more });
}

const codes = (checked: CheckedInput) => checked.faults.map(({ code, param, line: at }) => [code, param, at]);

function bodies(input: string | Buffer, { items }: CheckedInput): string[] {
  const bytes = Buffer.from(input as string);
  return Array.from({ length: items.count }, (_, i) =>
    bytes.toString('utf8', items.offsets[i]!, items.offsets[i]! + items.lengths[i]!),
  );
}

describe('a clean input file', () => {
  test('case 5: gives the body of each request byte by byte, its checksum, and the custom_ids as they were sent', () => {
    const body = '{"model" : "m","seed":9007199254740993,"x":1e400,"b":1,"a":"\\u0000\\ud800","a":1.0}';
    const input = [
      `{"custom_id":"a\\u0062","method":"POST","url":"${CHAT}","body":${body}}`,
      line(''),
      `{ "body" : {"model":"m"} , "url":"\\/v1\\/chat\\/completions","method":"P\\u004fST","custom_id":"\u2028","extra":[1] }`,
    ].join('\n');
    const checked = check(input);
    expect(checked.faults).toEqual([]);
    expect(bodies(input, checked)).toEqual([body, '{"model":"m"}', '{"model":"m"}']);
    expect([...checked.crcs]).toEqual(bodies(input, checked).map((text) => crc32(Buffer.from(text))));
    expect(checked.customIds).toBe('"a\\u0062"\n""\n"\u2028"\n');
    expect(checked.model).toBe('m');
  });

  test.each([
    ['CRLF line ends', [line('a'), line('b')].join('\r\n')],
    ['a last line end', `${line('a')}\n${line('b')}\n`],
    ['two last line ends', `${line('a')}\n${line('b')}\n\n`],
    ['blank lines', `\n${line('a')}\n \t\r\n${line('b')}`],
    ['a byte order mark', `\ufeff${line('a')}\n${line('b')}`],
    ['white space around', `  ${line('a')} \n\t${line('b')}`],
  ])('may have %s', (_, input) => {
    const checked = check(input);
    expect(checked.faults).toEqual([]);
    expect(bodies(input, checked)).toEqual(['{"model":"m"}', '{"model":"m"}']);
  });

  test('counts the last of duplicate members, as a parser would', () => {
    const input = `{"custom_id":1,"method":"GET","url":"x","body":{"stream":true},"custom_id":"a","method":"POST","url":"${CHAT}","body":{"stream":true,"stream":false,"model":"x","model":"y"}}`;
    const checked = check(input);
    expect(checked.faults).toEqual([]);
    expect(checked.model).toBe('y');
  });

  test('lets the body hold what looks like members of the line', () => {
    const input = line('a', { body: { custom_id: 1, url: 'x', method: 'GET', body: { stream: true }, model: 'm' } });
    expect(check(input).faults).toEqual([]);
  });

  test('names the model only when all requests do', () => {
    const of = (...models: unknown[]) => check(models.map((model, i) => line(`${i}`, { body: { model } })).join('\n'));
    expect(of('m', 'm').model).toBe('m');
    expect(of('m', 'n').model).toBeNull();
    expect(of('m', undefined).model).toBeNull();
    expect(of(undefined, 'm').model).toBeNull();
    expect(of(1, 1).model).toBeNull();
    expect(of('m\u0000').model).toBe('m\\u0000');
    expect(of('x'.repeat(1000)).model).toBe('x'.repeat(128));
    const escaped = `${line('a')}\n${line('b').replace('"m"', '"\\u006d"')}`;
    expect(check(escaped).model).toBe('m');
  });
});

describe('a faulty input file', () => {
  test.each([
    ['no JSON', '{"custom_id"', [['invalid_json_line', null, 1]]],
    ['more after its end', `${line('a')} x`, [['invalid_json_line', null, 1]]],
    ['null', 'null', [['invalid_json_line', null, 1]]],
    ['an array', '[1]', [['invalid_json_line', null, 1]]],
    ['a string', '"text"', [['invalid_json_line', null, 1]]],
    ['no custom_id', line(undefined), [['missing_required_parameter', 'custom_id', 1]]],
    ['a number as custom_id', line(1), [['invalid_custom_id', 'custom_id', 1]]],
    ['null as custom_id', line(null), [['invalid_custom_id', 'custom_id', 1]]],
    ['no method', line('a', { method: undefined }), [['missing_required_parameter', 'method', 1]]],
    ['another method', line('a', { method: 'GET' }), [['invalid_method', 'method', 1]]],
    ['a lower case method', line('a', { method: 'post' }), [['invalid_method', 'method', 1]]],
    ['no url', line('a', { url: undefined }), [['missing_required_parameter', 'url', 1]]],
    ['another url', line('a', { url: '/v1/responses' }), [['mismatched_url', 'url', 1]]],
    ['no body', line('a', { body: undefined }), [['missing_required_parameter', 'body', 1]]],
    ['null as body', line('a', { body: null }), [['invalid_json_line', 'body', 1]]],
    ['JSON in a string as body', line('a', { body: '{"model":"m"}' }), [['invalid_json_line', 'body', 1]]],
    ['stream true', line('a', { body: { stream: true } }), [['stream_not_supported', 'body.stream', 1]]],
    [
      'background true',
      line('a', { body: { background: true } }),
      [['background_not_supported', 'body.background', 1]],
    ],
    ['nothing', '', [['empty_file', 'input_file_id', null]]],
    ['blank lines only', '\n \r\n', [['empty_file', 'input_file_id', null]]],
    [
      'all of it',
      '{}',
      ['custom_id', 'method', 'url', 'body'].map((param) => ['missing_required_parameter', param, 1]),
    ],
  ])('is told of a line that is or has %s', (_, input, expected) => {
    expect(codes(check(input))).toEqual(expected);
  });

  test('may have stream false or null', () => {
    const input = [line('a', { body: { stream: false } }), line('b', { body: { stream: null } })].join('\n');
    expect(check(input).faults).toEqual([]);
  });

  test('case 4: reports every fault with its true line number, and names both lines of a duplicate', () => {
    const input = ['\ufeff', '', 'x', line('a'), '\r', '[]', line('b', { url: 'u' }), line('a')].join('\n');
    const { faults } = check(input);
    expect(faults.map(({ code, line: at }) => [code, at])).toEqual([
      ['invalid_json_line', 3],
      ['invalid_json_line', 6],
      ['mismatched_url', 7],
      ['duplicate_custom_id', 8],
    ]);
    expect(faults[3]!.message).toContain('line 8 ');
    expect(faults[3]!.message).toContain('line 4.');
  });

  test.each([
    ['the same text', '"a"', '"a"'],
    ['the same text with an escape', '"a"', '"\\u0061"'],
    ['the same long text', `"${'é'.repeat(100)}"`, `"${'\\u00e9'.repeat(100)}"`],
    ['the empty string', '""', '""'],
    ['the same lone surrogate', '"\\ud800"', '"\\uD800"'],
  ])('is told of custom_ids that are %s', (_, one, other) => {
    const input = [one, other].map((id) => line('ID').replace('"ID"', id)).join('\n');
    expect(codes(check(input))).toEqual([['duplicate_custom_id', 'custom_id', 2]]);
  });

  test.each([
    ['two lone surrogates', '"\\ud800"', '"\\ud801"'],
    ['a lone surrogate and what it is replaced by', '"\\ud800"', '"\ufffd"'],
    ['upper and lower case', '"a"', '"A"'],
    ['long ones that differ at the end', `"${'x'.repeat(100)}a"`, `"${'x'.repeat(100)}b"`],
  ])('takes %s for different custom_ids', (_, one, other) => {
    const input = [one, other].map((id) => line('ID').replace('"ID"', id)).join('\n');
    expect(check(input).faults).toEqual([]);
  });

  test('is told of bytes that are no UTF-8, also outside of what is read', () => {
    const input = Buffer.concat([
      Buffer.from(line('a').replace('}}', ',"x":"')),
      Buffer.from([0xff]),
      Buffer.from('"}}'),
    ]);
    expect(codes(check(input))).toEqual([['invalid_json_line', null, 1]]);
  });

  test('reports at most a thousand faults and then needs no more of the file', () => {
    const checking = inputCheck(CHAT);
    atOnce(checking.push(Buffer.from('{\n'.repeat(MAX_FAULTS - 1))));
    expect(checking.full()).toBe(false);
    atOnce(checking.push(Buffer.from('{\n{\n{\n')));
    expect(checking.full()).toBe(true);
    expect(atOnce(checking.end()).faults).toHaveLength(MAX_FAULTS);
  });

  test('is told how many requests it has when they are too many', () => {
    const lines = (n: number) => Array.from({ length: n }, (_, i) => line(`${i}`)).join('\n');
    const most = check(lines(MAX_REQUESTS));
    expect(most.faults).toEqual([]);
    expect(most.items.count).toBe(MAX_REQUESTS);
    const { faults } = check(lines(MAX_REQUESTS + 2));
    expect(faults.map(({ code, line: at }) => [code, at])).toEqual([['too_many_tasks', null]]);
    expect(faults[0]!.message).toContain('50002');
  });

  test('is told of a line with too many members', () => {
    const members = (n: number) => '"x":1,'.repeat(n - 4);
    const wide = (n: number) => `{${members(n)}${line('a').slice(1)}\n`;
    expect(codes(check(wide(MAX_MEMBERS)))).toEqual([]);
    expect(check(wide(MAX_MEMBERS + 1)).faults).toEqual([
      { code: 'invalid_json_line', message: 'This line has more than 100000 members.', param: null, line: 1 },
    ]);
  });

  test('is told of two custom_ids of megabytes that are the same, however they are escaped', () => {
    for (const char of ['a', 'é', '😀', '\ud800']) {
      const id = `${char}b`.repeat(50_000);
      const plain = JSON.stringify(id);
      const escaped = `"${[...Array(id.length).keys()].map((i) => `\\u${id.charCodeAt(i).toString(16).padStart(4, '0')}`).join('')}"`;
      const lineOf = (json: string) => line('ID').replace('"ID"', json);
      const text = [plain, escaped, JSON.stringify(`${id}c`)].map(lineOf).join('\n');
      expect(codes(check(text))).toEqual([['duplicate_custom_id', 'custom_id', 2]]);
    }
  });

  test('is told of a line that is longer than one may be, and reads on behind it', () => {
    const checking = inputCheck(CHAT);
    const start = line('a').slice(0, -2);
    atOnce(checking.push(Buffer.from(`${start},"x":"`)));
    const piece = Buffer.alloc(1024 * 1024, 'x');
    for (let i = 0; i < MAX_LINE_BYTES / piece.length; i++) atOnce(checking.push(piece));
    atOnce(checking.push(Buffer.from(`"}}\n${line('b')}\n{`)));
    expect(codes(atOnce(checking.end()))).toEqual([
      ['invalid_json_line', null, 1],
      ['invalid_json_line', null, 3],
    ]);
  });
});

describe('however a file is cut into pieces', () => {
  const text = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 12 }),
    fc.constantFrom('', ' ', '\ufeff', 'x', '[]', '{}', '{"custom_id":"', '\u2028'),
    fc
      .record({ id: fc.string({ unit: 'binary', maxLength: 3 }), x: fc.jsonValue() })
      .map(({ id, x }) => line(id, { body: { model: 'm', x } })),
  );

  test('the same is found', () => {
    fc.assert(
      fc.property(fc.array(text, { maxLength: 8 }), fc.array(fc.nat(), { maxLength: 6 }), (lines, cuts) => {
        const input = lines.join('\n');
        expect(check(input, cuts)).toEqual(check(input));
      }),
      { numRuns: 60 },
    );
  });

  test('a line passes exactly when a parser would find nothing wrong with it', () => {
    const value = fc.oneof(fc.constantFrom('POST', CHAT, true, null, undefined, 'a'), fc.jsonValue());
    const request = fc.record({
      custom_id: value,
      method: fc.oneof({ weight: 3, arbitrary: fc.constant('POST') }, value),
      url: fc.oneof({ weight: 3, arbitrary: fc.constant(CHAT) }, value),
      body: fc.oneof({ weight: 3, arbitrary: fc.record({ stream: value, model: value }) }, value),
    });
    fc.assert(
      fc.property(request, (given) => {
        const input = JSON.stringify(given);
        const { custom_id, method, url, body } = JSON.parse(input);
        const isBody = typeof body === 'object' && body !== null && !Array.isArray(body);
        const fine =
          typeof custom_id === 'string' && method === 'POST' && url === CHAT && isBody && body.stream !== true;
        const checked = check(input);
        expect(checked.faults.length === 0).toBe(fine);
        if (fine) expect(JSON.parse(bodies(input, checked)[0]!)).toEqual(body);
      }),
      { numRuns: 150 },
    );
  });
});
