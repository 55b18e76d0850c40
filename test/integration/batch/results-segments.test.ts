import { afterAll, beforeAll, expect, test } from 'vitest';
import { compactBatch } from '../../../lib/batch/results/compact.ts';
import type { ManyRead, PayloadRef } from '../../../lib/payloads/payload-store.ts';
import { plaintextOf } from '../../support/auth-catalog.ts';
import { createNativeApi, type NativeApi } from '../../support/native-api.ts';
import { finish } from '../../support/outcomes.ts';

/** Completed items of each segment. */
const EACH = 10;

let api: NativeApi;
/** How many reads were done together. */
let together = 0;
beforeAll(async () => {
  api = await createNativeApi(({ payloads }) => ({
    payloads: {
      ...payloads,
      async readMany(reads) {
        // Waits for the thread, which would else be up some time later.
        for (let given: ManyRead | null = null; ; await new Promise(setImmediate)) {
          given = await payloads.readMany!(reads);
          if (given === null) continue;
          together += given.done.filter((done) => done === 1).length;
          return given;
        }
      },
    },
  }));
});
afterAll(async () => {
  await api.payloads.close();
  await api.close();
});

const bodyOf = (idx: number) => JSON.stringify({ idx, text: `${idx} `.repeat(400) });
const element = (idx: number) => `{"idx":${idx},"state":"completed","response":${bodyOf(idx)}}`;
const broken = (idx: number, reason: string) =>
  JSON.stringify({ idx, state: 'completed', error: `batch item: load output: ${reason}` });
const documentOf = (elements: string[]) => `{"results":[${elements.join(',')}]}`;

/** A batch whose items are in segments of ten, each with items from all over it; the last items are open. */
async function runningBatch(segments: number): Promise<{ id: string; segments: string[]; expected: string[] }> {
  const items = segments * EACH + 5;
  const body = JSON.stringify({ shape: 'openai', requests: new Array(items).fill(0) });
  const { id } = (await api.call('node', { method: 'POST', path: '/v1/batches', body })).json;
  const ids: string[] = [];
  for (let number = 0; number < segments; number++) {
    const outcomes = members(number, segments).map((idx) => ({ idx, state: 'completed' as const, body: bodyOf(idx) }));
    ids.push(await finish(api, id, outcomes));
  }
  const expected = Array.from({ length: items }, (_, idx) =>
    idx < segments * EACH ? element(idx) : `{"idx":${idx},"state":"available"}`,
  );
  return { id, segments: ids, expected };
}

const segment = (id: string): PayloadRef => ({ kind: 'segment', id });
/** The items of a segment of `runningBatch`. */
const members = (number: number, segments: number) => Array.from({ length: EACH }, (_, i) => i * segments + number);
const results = (id: string) => api.call('node', { path: `/v1/batches/${id}/results` });

test('many small segments are read together, and several readers at once all get every byte', async () => {
  const { id, expected } = await runningBatch(300);
  together = 0;
  const answers = await Promise.all(Array.from({ length: 5 }, () => results(id)));
  for (const { text } of answers) expect(text === documentOf(expected)).toBe(true);
  expect(together).toBeGreaterThan(300);
});

test('a client that takes its time gets the same bytes, though memory is used again meanwhile', async () => {
  const { id, expected } = await runningBatch(500);
  const answer = await fetch(`${api.url}/v1/batches/${id}/results`, {
    headers: { authorization: `Bearer ${plaintextOf('ann')}` },
  });
  const chunks: Uint8Array[] = [];
  for await (const chunk of answer.body!) {
    chunks.push(chunk);
    if (chunks.length % 8 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  }
  expect(Buffer.concat(chunks).toString() === documentOf(expected)).toBe(true);
});

test('segments that are lost, cut or changed cost only their own items, and each says why', async () => {
  const { id, segments, expected } = await runningBatch(60);
  const [lost, cut, changed] = [7, 20, 41];
  const bytes = (number: number) => Buffer.concat(members(number, 60).map((idx) => Buffer.from(bodyOf(idx))));
  await api.payloads.delete([segment(segments[lost]!)]);
  const whole = bytes(cut);
  const last = Buffer.byteLength(bodyOf(members(cut, 60).at(-1)!));
  await api.payloads.write(segment(segments[cut]!), [whole.subarray(0, whole.length - last)]);
  const wrong = bytes(changed);
  wrong[3]! ^= 1;
  await api.payloads.write(segment(segments[changed]!), [wrong]);
  for (const idx of members(lost, 60)) expected[idx] = broken(idx, 'not found');
  expected[members(cut, 60).at(-1)!] = broken(members(cut, 60).at(-1)!, 'unreadable');
  expected[members(changed, 60)[0]!] = broken(members(changed, 60)[0]!, 'checksum mismatch');
  together = 0;
  expect((await results(id)).text).toBe(documentOf(expected));
  expect(together).toBeGreaterThan(0);
});

test('compaction of many small segments writes what the running batch gave', async () => {
  const { id, expected } = await runningBatch(200);
  const open = expected.slice(-5).map((_, i) => ({ idx: 2000 + i, state: 'cancelled' as const }));
  await finish(api, id, open);
  const before = (await results(id)).text;
  together = 0;
  expect(await compactBatch({ ...api.app, payloads: { ...api.payloads, ...api.app.payloads } }, id)).toBe(true);
  expect(together).toBeGreaterThanOrEqual(200);
  expect((await results(id)).text === before).toBe(true);
});
