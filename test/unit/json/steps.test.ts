import { Buffer, isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  atOnce,
  crc32InSteps,
  includesInSteps,
  piecesOf,
  STEP_BYTES,
  type Steps,
  sha256InSteps,
} from '../../../lib/base/turns.ts';
import { sliceInSteps } from '../../../lib/batch/submit/slice.ts';
import { findMembersInSteps } from '../../../lib/json/members.ts';
import { onOneLine } from '../../../lib/json/one-line.ts';
import { stringPieces, stringStart } from '../../../lib/json/strings.ts';
import { isUtf8InSteps } from '../../../lib/json/utf8.ts';
import { startDocument, walkInSteps } from '../../../lib/json/walk.ts';
import { CREATE_LIMITS, createBodyReader } from '../../../lib/surfaces/anthropic/create-body.ts';
import { resultLineInSteps as anthropicLine } from '../../../lib/surfaces/anthropic/result-line.ts';
import { resultLineInSteps as openaiLine } from '../../../lib/surfaces/openai/result-line.ts';
import { inputCheck } from '../../../lib/surfaces/openai/validation/input-check.ts';
import { peekItemInSteps } from '../../../lib/upstream/item-body.ts';
import { readLargeAnswer } from '../../../lib/upstream/large-answer.ts';
import { HOSTILE } from '../../support/hostile.ts';

/** A token may be passed on to the next step by a few bytes: an escape, a word, a character. */
const SLACK = 8;

/**
 * Runs the steps on bytes of which each step can see only so many more than the one before; what is hidden reads as
 * something that would change the result.
 */
function blindfolded<T>(bytes: Buffer, hidden: number, steps: (bytes: Buffer) => Steps<T>): T {
  const seen = Buffer.alloc(bytes.length, hidden);
  const running = steps(seen);
  for (let from = 0; ; ) {
    const to = Math.min(bytes.length, from + STEP_BYTES + (from === 0 ? SLACK : 0));
    bytes.copy(seen, from, from, to);
    from = to;
    const { done, value } = running.next();
    if (done) return value;
  }
}

const hostile = fc
  .tuple(fc.constantFrom(...Object.keys(HOSTILE)), fc.integer({ min: 1000, max: 6 * STEP_BYTES }))
  .map(([name, bytes]) => ({ name, bytes: HOSTILE[name]!(bytes) }));

describe('one step reads no more than its bytes', () => {
  test.each<[string, number, (bytes: Buffer) => Steps<unknown>, (bytes: Buffer) => unknown]>([
    ['a walk, to which all else is a quote', 0x22, (bytes) => walkInSteps(startDocument(0), bytes), walked],
    ['a walk, to which all else is a bracket', 0x5d, (bytes) => walkInSteps(startDocument(0), bytes), walked],
    ['a check for UTF-8', 0xff, isUtf8InSteps, (bytes) => isUtf8(bytes)],
    ['a CRC32', 0x01, crc32InSteps, (bytes) => crc32(bytes)],
    ['a SHA-256', 0x01, (bytes) => sha256InSteps(bytes), (bytes) => createHash('sha256').update(bytes).digest()],
    ['a search', 0x7e, (bytes) => includesInSteps(bytes, '~~~'), () => false],
  ])('%s', (_name, hidden, steps, expected) => {
    fc.assert(
      fc.property(hostile, ({ bytes }) => {
        expect(blindfolded(bytes, hidden, steps)).toEqual(expected(bytes));
      }),
      { numRuns: 60 },
    );
  });

  function walked(bytes: Buffer): number {
    return atOnce(walkInSteps(startDocument(0), bytes));
  }
});

describe('whoever reads many bytes stops at least as often as there are steps in them', () => {
  const whole = Object.entries(HOSTILE).filter(([name]) => !/ do(es)? not end$/.test(name));
  const id = Buffer.from('"a"');
  const refusal = (body: Buffer) => ({
    idx: 0,
    state: 'discarded' as const,
    error: 'batch item: upstream status 400',
    errorKind: null,
    status: 400,
    body,
  });

  /** Pushes all parts, and counts the stops. */
  function* pushed(push: (chunk: Buffer) => Steps<void>, ...parts: Buffer[]): Steps<void> {
    for (const part of parts) yield* push(part);
  }

  const readers: Record<string, (bytes: Buffer) => Steps<unknown>> = {
    'a native submit': (bytes) => sliceInSteps(bytes, 10, []),
    'an item in the worker': peekItemInSteps,
    'an item of embeddings': (bytes) => peekItemInSteps(bytes, true),
    'an answer': (bytes) => readLargeAnswer('openai', bytes),
    'an answer of embeddings': (bytes) => readLargeAnswer('openai_embeddings', bytes),
    'an error body': (bytes) => findMembersInSteps(bytes, ['error']),
    'the body of an OpenAI line': (bytes) => {
      const check = inputCheck('/v1/responses');
      const head = '{"custom_id":"a","method":"POST","url":"/v1/responses","body":';
      return pushed(check.push, Buffer.from(head), bytes, Buffer.from('}\n'));
    },
    'an Anthropic create': (bytes) => createBodyReader(CREATE_LIMITS).push(bytes),
    'the params of an Anthropic create': (bytes) =>
      pushed(
        createBodyReader(CREATE_LIMITS).push,
        Buffer.from('{"requests":[{"custom_id":"a","params":'),
        bytes,
        Buffer.from('}]}'),
      ),
    'a line of an error file': (bytes) => openaiLine('b', id, refusal(bytes)),
    'a result line of Anthropic': (bytes) => anthropicLine(id, refusal(bytes), 'errored', 'req'),
    'an answer on one line': onOneLine,
  };

  test.each(Object.keys(readers))('%s', (reader) => {
    for (const [name, make] of whole) {
      for (const size of [1000, 3 * STEP_BYTES + 17]) {
        const bytes = make(size);
        let stops = 0;
        for (const _ of readers[reader]!(bytes)) stops++;
        expect(stops, name).toBeGreaterThanOrEqual(Math.floor(size / STEP_BYTES));
      }
    }
  });
});

describe('a long string', () => {
  const char = fc.oneof(
    fc.string({ unit: 'binary', minLength: 1, maxLength: 1 }),
    fc.constantFrom('😀', '\ud83d', '\ude00', '\\', '"', 'é', '日', '\n'),
  );
  const text = fc
    .tuple(fc.array(char, { minLength: 1, maxLength: 9 }), fc.integer({ min: 1, max: 40_000 }))
    .map(([chars, times]) => chars.join('').repeat(times));
  const escaped = (value: string) =>
    `"${[...value].map((one) => (one.length === 1 ? `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}` : one)).join('')}"`;

  test('is the same in pieces', () => {
    fc.assert(
      fc.property(text, fc.boolean(), (value, isEscaped) => {
        const json = Buffer.from(isEscaped ? escaped(value) : JSON.stringify(value));
        const pieces = [...stringPieces(json)];
        expect(pieces.join('') === JSON.parse(json.toString())).toBe(true);
        expect(pieces.length).toBeGreaterThanOrEqual(Math.floor(json.length / (STEP_BYTES + SLACK)));
      }),
      { numRuns: 50 },
    );
  });

  test('starts with its first characters', () => {
    fc.assert(
      fc.property(fc.array(char), fc.nat(12), fc.boolean(), (chars, count, isEscaped) => {
        // Characters are those of UTF-8: a surrogate that is escaped alone counts as one.
        const value = chars.join('').toWellFormed();
        const json = isEscaped ? escaped(value) : JSON.stringify(value);
        expect(stringStart(Buffer.from(`x${json}`), 1, count)).toBe([...value].slice(0, count).join(''));
      }),
    );
  });
});

test('pieces are all bytes in order', () => {
  for (const size of [0, 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES]) {
    const bytes = Buffer.alloc(size, 'x');
    const pieces = [...piecesOf(bytes)];
    expect(Buffer.concat(pieces)).toEqual(bytes);
    expect(pieces).toHaveLength(Math.ceil(size / STEP_BYTES));
  }
});
