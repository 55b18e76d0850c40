import { Buffer } from 'node:buffer';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  blockWriter,
  CHUNK_BYTES,
  type ElementBlock,
  firstOf,
  LARGE_BYTES,
} from '../../../../lib/batch/results/block.ts';
import { ITEM_STATES } from '../../../../lib/model/batch.ts';

type Item =
  | { kind: 'response'; body: Buffer }
  | { kind: 'bare'; state: number }
  | { kind: 'discarded' | 'failed'; text: string }
  | { kind: 'element'; bytes: Buffer };

const OPEN = [0, 1, 4];
const sizes = fc.oneof(
  fc.integer({ min: 0, max: 3000 }),
  fc.constantFrom(CHUNK_BYTES - 60, CHUNK_BYTES, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 70),
);
const item: fc.Arbitrary<Item> = fc.oneof(
  sizes.map((size): Item => ({ kind: 'response', body: Buffer.alloc(size, 'r') })),
  fc.constantFrom(...OPEN).map((state): Item => ({ kind: 'bare', state })),
  fc.record({ kind: fc.constantFrom('discarded' as const, 'failed' as const), text: fc.string({ unit: 'binary' }) }),
  sizes.map((size): Item => ({ kind: 'element', bytes: Buffer.alloc(size, 'e') })),
);
const idx = fc.oneof(
  fc.integer({ min: 0, max: 60_000 }),
  fc.constantFrom(0, 9, 10, 99, 100, 999_999_999, 2_147_483_647),
);

/** The contract of "Results" in docs/spec/native-api.md, written in the plainest way. */
function expected(number: number, one: Item): string {
  switch (one.kind) {
    case 'response':
      return `{"idx":${number},"state":"completed","response":${one.body.toString()}}`;
    case 'bare':
      return JSON.stringify({ idx: number, state: ITEM_STATES[one.state] });
    case 'discarded':
      return JSON.stringify({ idx: number, state: 'discarded', error: one.text });
    case 'failed':
      return JSON.stringify({ idx: number, state: 'completed', error: `batch item: load output: ${one.text}` });
    case 'element':
      return one.bytes.toString();
  }
}

function write(items: readonly (readonly [number, Item])[], bytes: number): ElementBlock {
  const writer = blockWriter(bytes);
  for (const [number, one] of items) {
    if (one.kind === 'response') writer.response(number, one.body);
    else if (one.kind === 'bare') writer.bare(number, one.state);
    else if (one.kind === 'element') writer.element(number, 'completed', one.bytes);
    else writer[one.kind](number, one.text);
  }
  return writer.done();
}

describe('a block of elements', () => {
  test('is what JSON gives, joined by commas, however large it was said to become', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(idx, item), { minLength: 1, maxLength: 30 }), fc.nat(8_000_000), (items, bytes) => {
        const block = write(items, bytes);
        const texts = items.map(([number, one]) => expected(number, one));
        const whole = Buffer.concat(block.chunks);
        expect(whole.equals(Buffer.from(texts.join(',')))).toBe(true);
        expect(block.count).toBe(items.length);
        expect(block.idx).toEqual(items.map(([number]) => number));
        for (const [i, text] of texts.entries()) {
          expect(whole.subarray(block.start[i], block.end[i]).equals(Buffer.from(text))).toBe(true);
        }
      }),
      { numRuns: 60 },
    );
  });

  test('can be cut after any of its elements', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(idx, item), { minLength: 1, maxLength: 8 }), fc.nat(), (items, at) => {
        const block = write(items, 1000);
        const count = 1 + (at % items.length);
        const texts = items.slice(0, count).map(([number, one]) => expected(number, one));
        expect(Buffer.concat(firstOf(block, count)).equals(Buffer.from(texts.join(',')))).toBe(true);
      }),
      { numRuns: 60 },
    );
  });

  test('passes large bytes on as they are, and copies small ones, whose memory is used again', () => {
    const [small, large] = [Buffer.alloc(5000, 's'), Buffer.alloc(LARGE_BYTES, 'l')];
    const block = write(
      [
        [0, { kind: 'response', body: small }],
        [1, { kind: 'response', body: large }],
      ],
      5000,
    );
    small.fill('!');
    expect(block.chunks).toContain(large);
    expect(Buffer.concat(block.chunks).includes('!')).toBe(false);
  });
});
