import { Buffer } from 'node:buffer';
import { describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../../lib/base/clock.ts';
import { objectSink } from '../../../../lib/surfaces/openai/object-sink.ts';

const REF = { kind: 'output' as const, id: uuidv7() };

/** A store that takes chunks only on demand, and may fail after some. */
function store({ failAfter = Number.POSITIVE_INFINITY } = {}) {
  const chunks: Buffer[] = [];
  let begun = 0;
  return {
    chunks,
    begun: () => begun,
    async writeStream(_: unknown, source: AsyncIterable<Uint8Array>) {
      begun++;
      let length = 0;
      for await (const chunk of source) {
        if (chunks.length === failAfter) throw new Error('disk full');
        chunks.push(Buffer.from(chunk));
        length += chunk.length;
        await new Promise((resolve) => setImmediate(resolve));
      }
      return length;
    },
  };
}

describe('an object sink', () => {
  test('writes what it was given, in order, in chunks', async () => {
    const target = store();
    const sink = objectSink(target, REF);
    const pieces = Array.from({ length: 2000 }, (_, i) => Buffer.alloc(i % 7 === 0 ? 300_000 : 500, i % 251));
    for (const piece of pieces) await sink.write([piece, Buffer.from('\n')]);
    const all = Buffer.concat(pieces.flatMap((piece) => [piece, Buffer.from('\n')]));
    expect(await sink.end()).toBe(all.length);
    expect(Buffer.concat(target.chunks).equals(all)).toBe(true);
    expect(target.begun()).toBe(1);
  });

  test('makes no object of nothing', async () => {
    const target = store();
    expect(await objectSink(target, REF).end()).toBe(0);
    expect(target.begun()).toBe(0);
  });

  test('tells who feeds it that the store has failed', async () => {
    const sink = objectSink(store({ failAfter: 1 }), REF);
    const feed = async () => {
      for (let i = 0; i < 100; i++) await sink.write([Buffer.alloc(300_000)]);
    };
    await expect(feed()).rejects.toThrow('disk full');
    await sink.abort();
  });

  test('fails at its end when the store does', async () => {
    const sink = objectSink(store({ failAfter: 0 }), REF);
    await sink.write([Buffer.from('x')]);
    await expect(sink.end()).rejects.toThrow('disk full');
  });

  test('breaks the write off when it is given up', async () => {
    const target = store();
    const sink = objectSink(target, REF);
    await sink.write([Buffer.alloc(300_000)]);
    await sink.abort();
    await expect(sink.end()).rejects.toThrow('given up');
  });
});
