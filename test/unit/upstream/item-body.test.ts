import { Buffer } from 'node:buffer';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../lib/base/turns.ts';
import { findMembers, MAX_MEMBERS } from '../../../lib/json/members.ts';
import { peekItem, peekItemInSteps, replaceModel } from '../../../lib/upstream/item-body.ts';
import { readLargeAnswer } from '../../../lib/upstream/large-answer.ts';

/** At once, and in steps: both must say the same. */
function peek(text: string) {
  const item = Buffer.from(text);
  const found = peekItem(item);
  expect(atOnce(peekItemInSteps(item))).toEqual(found);
  return found;
}

/** The item with its model replaced, as the upstream receives it. */
function renamed(text: string, wireName: string): string {
  const item = Buffer.from(text);
  const found = peekItem(item);
  if (found.kind !== 'object') expect.fail(found.kind);
  return Buffer.concat(replaceModel(item, found.modelSpans, wireName)).toString();
}

describe('peeking at an item', () => {
  test('reads model and stream at the top level only', () => {
    expect(peek('{"messages":[{"model":"no","stream":true}],"model":"gpt-4o","stream":false}')).toEqual({
      kind: 'object',
      model: 'gpt-4o',
      modelIs: 'string',
      modelSpans: [[51, 59]],
      stream: false,
      background: false,
      inputs: 1,
    });
  });

  test('takes the last of duplicates and reports the span of each', () => {
    expect(peek('{"model":"a","stream":true,"mod\\u0065l": "b" ,"stream":0}')).toMatchObject({
      model: 'b',
      modelSpans: [
        [9, 12],
        [41, 44],
      ],
      stream: false,
    });
    expect(peek('{"stream":null,"stream":true}')).toMatchObject({ stream: true });
    expect(peek('{"model":"a","model":1}')).toMatchObject({ model: null, modelIs: 'not_string' });
  });

  test('takes background for true as it takes stream', () => {
    expect(peek('{"background":true,"stream":false}')).toMatchObject({ background: true, stream: false });
    for (const value of ['false', '"true"', '"transparent"', '1', 'null', '[true]', '{"background":true}']) {
      expect(peek(`{"background":${value}}`)).toMatchObject({ background: false });
    }
    expect(peek('{"background":true,"background":false}')).toMatchObject({ background: false });
  });

  test.each([
    ['"a text"', 1],
    ['["a"]', 1],
    ['["a","b","c"]', 3],
    ['[1,2,3]', 1],
    ['[-1,2]', 1],
    ['[[1,2],[3]]', 2],
    ['[{"type":"text"},{"type":"text"}]', 2],
    ['[]', 0],
    ['{"a":1,"b":2}', 1],
    ['null', 1],
    ['["a","b"],"input":"c"', 1],
    ['"c","input":["a","b"]', 2],
    ['["a","b"],"other":[1,2,3,4]', 2],
  ])('counts the vectors that the input %s asks for: %i', (input, expected) => {
    for (const found of inBoth(`{"model":"a","input":${input},"x":{"input":["a","b"]}}`, true)) {
      expect(found).toMatchObject({ inputs: expected });
    }
    for (const found of inBoth('{"model":"a"}', true)) expect(found).toMatchObject({ inputs: 1 });
  });

  const inBoth = (text: string, countInputs: boolean) => [
    peekItem(Buffer.from(text), countInputs),
    atOnce(peekItemInSteps(Buffer.from(text), countInputs)),
  ];

  test.each([
    ['{}', 'missing'],
    ['{"Model":"a","models":"b","mode":"c","":"d"}', 'missing'],
    ['{"model":null}', 'not_string'],
    ['{"model":["a"]}', 'not_string'],
    ['{"model":{"model":"a"}}', 'not_string'],
    ['{"model":1e400}', 'not_string'],
  ])('%s has no model: %s', (text, modelIs) => {
    expect(peek(text)).toMatchObject({ kind: 'object', model: null, modelIs });
  });

  test.each(['false', '"true"', '1', 'null', '[true]', '{"stream":true}'])('stream %s is not true', (value) => {
    expect(peek(`{"stream":${value}}`)).toMatchObject({ stream: false });
  });

  test.each(['null', '[1]', '"text"', '"{\\"model\\":\\"a\\"}"', '1', ' true '])('%s is no object', (text) => {
    expect(peek(text)).toEqual({ kind: 'not_object' });
  });

  test.each(['', ' ', '{', '{"a":1', '{"a":1}}', '{"a":01}', '{"model":"a}', 'nul', '[1', '{"model":"\\'])(
    '%j is invalid, and never throws',
    (text) => {
      expect(peek(text)).toEqual({ kind: 'invalid' });
    },
  );

  test('bytes that are no UTF-8 are invalid', () => {
    expect(peekItem(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]))).toEqual({ kind: 'invalid' });
    expect(peekItem(Buffer.from([0x22, 0xff, 0x22]))).toEqual({ kind: 'invalid' });
  });

  test('decodes escapes, NUL, lone surrogates and non-ASCII names', () => {
    expect(peek('{"model":"a\\u0000b\\/\\ud800"}')).toMatchObject({ model: 'a\u0000b/\ud800' });
    expect(peek('{"model":"モデル"}')).toMatchObject({ model: 'モデル' });
    expect(peek('{"model":""}')).toMatchObject({ model: '', modelIs: 'string' });
  });

  test('survives a 10 MB model, deep nesting and a million duplicate models', () => {
    for (const char of ['m', 'é', '😀', '\\u006d', '\\\\']) {
      const found = peek(`{"model":"${char.repeat(10_000_000 / char.length)}"}`);
      const start = JSON.parse(`"${char.repeat(16_384)}"`);
      expect(found.kind === 'object' && found.model === start).toBe(true);
    }
    expect(peek(`{"x":${'['.repeat(100_000)}${']'.repeat(100_000)},"model":"a"}`)).toMatchObject({ model: 'a' });
    expect(peek(`{${'"model":1,'.repeat(1_000_000)}"model":"a"}`)).toEqual({ kind: 'too_many_members' });
    expect(peek(`{${'"model":1,'.repeat(MAX_MEMBERS - 1)}"model":"a"}`)).toMatchObject({
      model: null,
      modelIs: 'repeated',
      modelSpans: [],
    });
    expect(peek(`{${'"model":1,'.repeat(63)}"model":"a"}`)).toMatchObject({ model: 'a', modelIs: 'string' });
  });

  test('agrees with JSON.parse on any bytes', () => {
    const part = fc.constantFrom(
      ...[
        '{',
        '}',
        '"model":',
        '"mod\\u0065l":',
        '"stream":',
        '"x":',
        '"a"',
        '"\\u0062"',
        'true',
        '1',
        ',',
        ' ',
        '[',
        ']',
      ],
    );
    const member = fc.constantFrom('"model":"a"', '"model":7', '"stream":true', '"stream":[]', '"x":{"model":"n"}');
    const text = fc.oneof(
      fc.array(part, { maxLength: 10 }).map((parts) => parts.join('')),
      fc.array(member, { maxLength: 5 }).map((members) => ` {${members.join(', ')}} `),
    );
    fc.assert(
      fc.property(text, (text) => {
        let value: unknown;
        try {
          value = JSON.parse(text);
        } catch {
          expect(peek(text)).toEqual({ kind: 'invalid' });
          return;
        }
        if (typeof value !== 'object' || value === null || Array.isArray(value)) {
          expect(peek(text)).toEqual({ kind: 'not_object' });
          return;
        }
        const { model, stream } = value as Record<string, unknown>;
        expect(peek(text)).toMatchObject({
          kind: 'object',
          model: typeof model === 'string' ? model : null,
          stream: stream === true,
        });
      }),
      { numRuns: 3000 },
    );
  });
});

describe('replacing the model', () => {
  test('changes the value of every top-level `model` and no other byte', () => {
    const text =
      ' {"seed": 9007199254740993,"mod\\u0065l" : "old",\n"b":1.0,"a":-0,"m":{"model":"in"},"model":null,"s":"\\ud800"} ';
    expect(renamed(text, 'new "x"')).toBe(
      ' {"seed": 9007199254740993,"mod\\u0065l" : "new \\"x\\"",\n"b":1.0,"a":-0,"m":{"model":"in"},"model":"new \\"x\\"","s":"\\ud800"} ',
    );
  });

  test('copies nothing but the new value', () => {
    const item = Buffer.from('{"model":"a","x":1}');
    const pieces = replaceModel(item, [[9, 12]], 'b');
    expect(pieces.map(String)).toEqual(['{"model":', '"b"', ',"x":1}']);
    expect(pieces[0]!.buffer).toBe(item.buffer);
    expect(pieces[2]!.byteOffset).toBe(item.byteOffset + 12);
  });

  test('gives what JSON.parse reads as the same object with another model', () => {
    const object = fc.dictionary(fc.string(), fc.jsonValue());
    fc.assert(
      fc.property(object, fc.string(), fc.string(), (rest, model, wireName) => {
        const item = { ...JSON.parse(JSON.stringify(rest)), model };
        expect(JSON.parse(renamed(JSON.stringify(item, null, 1), wireName))).toEqual({ ...item, model: wireName });
      }),
    );
  });
});

describe('an upstream answer', () => {
  const kindOf = (body: Buffer) => atOnce(readLargeAnswer('openai', body)).kind;

  test.each([
    ['{}', 'object'],
    [' {"error":null}\n', 'object'],
    ['null', 'not_object'],
    ['[]', 'not_object'],
    ['"{}"', 'not_object'],
    ['', 'invalid'],
    ['<html>', 'invalid'],
    ['{"choices":[', 'invalid'],
    ['{} {}', 'invalid'],
    ['\ufeff{}', 'invalid'],
  ])('%j is %s', (text, kind) => {
    expect(kindOf(Buffer.from(text))).toBe(kind);
    expect(findMembers(Buffer.from(text), ['error']).kind).toBe(kind);
  });

  test('that is no UTF-8 is invalid', () => {
    expect(kindOf(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]))).toBe('invalid');
  });

  test('gives single members to be parsed alone, the last of duplicates', () => {
    const text = `{"id":"x","usage":{"n":1},"choices":["${'y'.repeat(2_000_000)}"],"usage": {"total":5} }`;
    const body = Buffer.from(text);
    const found = findMembers(body, ['usage', 'error', 'choices']);
    if (found.kind !== 'object') expect.fail(found.kind);
    const { start, end } = found.members.get('usage')!;
    expect(JSON.parse(body.toString('utf8', start, end))).toEqual({ total: 5 });
    expect([...found.members.keys()].sort()).toEqual(['choices', 'usage']);
  });
});
