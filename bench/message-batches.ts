import { join } from 'node:path';
import { call } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, timed } from './support/figure.ts';
import { peakGrowth } from './support/process.ts';
import { writeDurably } from './support/write-durably.ts';

const MIB = 2 ** 20;
const REQUESTS = 100_000;
const BODY_BYTES = 256 * MIB;
const LARGE = 8;
const PATH = '/v1/messages/batches';
/** Front-doors: the most that memory may grow, however large the body. */
const GROWTH_MIB = 64;

/** The largest create: 100,000 requests and 256 MiB, and the same of 8 requests of 31 MiB; beside one fsynced write of it. */
export async function benchMessageBatches(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const server = await bed.server({ database, concurrency: 0 });
  const directory = await bed.directory();
  await call(server, 'POST', PATH, create(2000, 2000)); // warms up

  const measure = async (name: string, body: Buffer): Promise<Figure[]> => {
    const plain = await timed(() => writeDurably(join(directory, String(body.length)), body));
    let ours = 0;
    const growth = await peakGrowth(server.pid, async () => {
      ours = await timed(() => call(server, 'POST', PATH, body));
    });
    const speed = `${format(body.length / 1000 / ours)} MB/s`;
    return [
      {
        name: `message batch of ${name}, ${format(body.length / MIB)} MiB`,
        value: ours / plain,
        unit: 'times',
        comparedWith: `one fsynced write ${format(plain)} ms, this ${format(ours)} ms, ${speed}`,
      },
      {
        name: '  peak growth of resident memory',
        value: (growth ?? Number.NaN) / MIB,
        unit: 'MiB',
        comparedWith: 'the server before it',
        target: { atMost: GROWTH_MIB },
      },
    ];
  };
  return [
    ...(await measure('100,000 requests', create(REQUESTS, Math.floor((BODY_BYTES - 100) / REQUESTS)))),
    ...(await measure('8 requests', create(LARGE, 31 * MIB))),
  ];
}

/** A create of `count` requests of `bytes` each, commas included. */
function create(count: number, bytes: number): Buffer {
  const requests = Array.from({ length: count }, (_, i) => {
    const request = (text: string) =>
      `{"custom_id":"request-${i}","params":{"model":"bench","max_tokens":64,"messages":[{"role":"user","content":"${text}"}]}}`;
    return request('x'.repeat(Math.max(0, bytes - request('').length - 1)));
  });
  return Buffer.from(`{"requests":[${requests.join(',')}]}`);
}
