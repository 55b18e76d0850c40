import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ApiError } from '../../../../lib/base/errors.ts';
import { readForm } from '../../../../lib/surfaces/files/form.ts';
import { BOUNDARY, formOf, type Part } from '../../../support/files-form.ts';

const TYPE = `multipart/form-data; boundary=${BOUNDARY}`;
const tooLarge = () => new ApiError('body_too_large');

async function* pieces(body: Buffer, cuts: readonly number[]): AsyncGenerator<Uint8Array> {
  let at = 0;
  for (const cut of [...cuts].map((n) => n % (body.length + 1)).sort((a, b) => a - b)) {
    if (cut > at) yield body.subarray(at, cut);
    at = Math.max(at, cut);
  }
  if (at < body.length) yield body.subarray(at);
}

interface Read {
  fields: [string, string][];
  file: { filename: string | undefined; bytes: Buffer } | null;
}

async function read(body: AsyncIterable<Uint8Array>, maxBytes = Number.POSITIVE_INFINITY): Promise<Read> {
  const seen: Read = { fields: [], file: null };
  await readForm(
    { contentType: TYPE, body, maxBytes, tooLarge },
    {
      field: (name, value) => void seen.fields.push([name, value]),
      async file(filename, bytes) {
        const chunks: Uint8Array[] = [];
        for await (const chunk of bytes) chunks.push(chunk);
        seen.file = { filename, bytes: Buffer.concat(chunks) };
      },
    },
  );
  return seen;
}

const cuts = fc.array(fc.nat(), { maxLength: 12 });
// Bytes that look like the ends of parts are the interesting ones.
const bytes = fc
  .array(
    fc.oneof(
      fc.constantFrom('\r\n', '--', `\r\n--${BOUNDARY.slice(0, 5)}`, '\r', '\n', '-', BOUNDARY),
      fc.uint8Array({ maxLength: 20 }).map((array) => Buffer.from(array).toString('latin1')),
    ),
    { maxLength: 12 },
  )
  .map((texts) => Buffer.from(texts.join(''), 'latin1'))
  .filter((buffer) => !buffer.includes(`\r\n--${BOUNDARY}`) && !`\r\n${buffer}`.includes(`\r\n--${BOUNDARY}`));

describe('readForm', () => {
  test('gives fields and bytes as they were sent, in whatever pieces they come', async () => {
    const field = fc.record({ name: fc.constantFrom('a', 'b', 'purpose'), value: fc.string({ maxLength: 20 }) });
    const fields = fc.array(field, { maxLength: 3 });
    await fc.assert(
      fc.asyncProperty(fields, bytes, fields, cuts, async (before, value, after, at) => {
        const body = formOf([...before, { name: 'file', filename: 'in.jsonl', value }, ...after]);
        const pairs = [...before, ...after].map((part) => [part.name, part.value]);
        expect(await read(pieces(body, at))).toEqual({ fields: pairs, file: { filename: 'in.jsonl', bytes: value } });
      }),
      { numRuns: 300 },
    );
  });

  test('ends, whole or with an error of the caller, for any damage in any pieces', async () => {
    const parts: Part[] = [
      { name: 'purpose', value: 'batch' },
      { name: 'file', filename: 'in.jsonl', value: 'x'.repeat(50) },
      { name: 'more', value: '1' },
    ];
    const whole = formOf(parts);
    const damage = fc.record({
      at: fc.nat(whole.length),
      drop: fc.nat(60),
      put: fc.oneof(
        fc.constantFrom('', '\r\n', '--', '\r\n\r\n', `\r\n--${BOUNDARY}`, `--${BOUNDARY}--`, '"'),
        fc.string(),
      ),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(damage, { minLength: 1, maxLength: 3 }), cuts, async (damages, at) => {
        let body = whole;
        for (const { at: from, drop, put } of damages) {
          body = Buffer.concat([body.subarray(0, from), Buffer.from(put), body.subarray(from + drop)]);
        }
        const outcome = await read(pieces(body, at)).then(
          () => 'read',
          (error) => (error as ApiError).code,
        );
        expect(['read', 'invalid_value']).toContain(outcome);
      }),
      { numRuns: 1000 },
    );
  });

  test('ends the taker of the file, and says why, when the body breaks off', async () => {
    let heard: unknown = null;
    async function* broken(): AsyncGenerator<Uint8Array> {
      const whole = formOf([{ name: 'file', filename: 'in.jsonl', value: 'x'.repeat(100_000) }]);
      yield whole.subarray(0, 60_000);
      throw new Error('aborted');
    }
    const reading = readForm(
      { contentType: TYPE, body: broken(), maxBytes: 1e6, tooLarge },
      {
        field() {},
        async file(_name, taken) {
          try {
            for await (const chunk of taken) expect(chunk.byteLength).toBeGreaterThan(0);
          } catch (error) {
            heard = error;
            throw error;
          }
        },
      },
    );
    await expect(reading).rejects.toMatchObject({ code: 'invalid_value', message: /the connection ended before/ });
    expect(heard).toMatchObject({ code: 'invalid_value' });
  });

  test('takes no more of the body than the file is taken', async () => {
    let sent = 0;
    const letGo = Promise.withResolvers<void>();
    const stalled = Promise.withResolvers<void>();
    async function* endless(): AsyncGenerator<Uint8Array> {
      yield Buffer.from(`--${BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n`);
      for (; sent < 50 * 1024 * 1024; sent += 65_536) yield Buffer.alloc(65_536);
      yield Buffer.from(`\r\n--${BOUNDARY}--\r\n`);
    }
    const reading = readForm(
      { contentType: TYPE, body: endless(), maxBytes: 1e9, tooLarge },
      {
        field() {},
        async file(_name, taken) {
          for await (const chunk of taken) {
            expect(chunk.byteLength).toBeGreaterThan(0);
            stalled.resolve();
            await letGo.promise;
          }
        },
      },
    );
    await stalled.promise;
    // Everything that could continue without the taker has gone on when the event loop has turned so often.
    for (let turn = 0; turn < 2000; turn++) await new Promise(setImmediate);
    expect(sent).toBeLessThan(1024 * 1024);
    letGo.resolve();
    await reading;
    expect(sent).toBe(50 * 1024 * 1024);
  });

  test('ends with the first error of who takes its parts, and lets go of the body', async () => {
    let released = false;
    async function* endless(): AsyncGenerator<Uint8Array> {
      try {
        yield formOf([
          { name: 'a', value: '1' },
          { name: 'file', filename: 'b', value: '2' },
        ]).subarray(0, -20);
        for (;;) yield Buffer.alloc(1000);
      } finally {
        released = true;
      }
    }
    const reading = readForm(
      { contentType: TYPE, body: endless(), maxBytes: 1e9, tooLarge },
      {
        field() {
          throw new ApiError('invalid_value', 'no such field', { param: 'a' });
        },
        file: () => Promise.reject(new Error('never called')),
      },
    );
    await expect(reading).rejects.toMatchObject({ param: 'a' });
    await expect.poll(() => released).toBe(true);
  });

  test('counts the whole body, parts of no use included', async () => {
    async function* preamble(): AsyncGenerator<Uint8Array> {
      for (;;) yield Buffer.alloc(1000, 'x');
    }
    await expect(read(preamble(), 100_000)).rejects.toMatchObject({ code: 'body_too_large' });
  });
});
