import { call } from './support/batches.ts';
import type { Bed, BenchServer } from './support/bed.ts';
import { type Figure, format, median, timed } from './support/figure.ts';
import { halfDone } from './support/half-done.ts';

const ITEMS = 50_000;
const ROUNDS = 15;

/** The status of a batch of 50,000 items that is half done, beside that of a batch with one item. */
export async function benchStatus(bed: Bed): Promise<Figure[]> {
  const { server, batch } = await halfDone(bed, ITEMS, 0);
  const one = JSON.parse((await call(server, 'POST', '/v1/batches', ONE_ITEM)).toString()) as { id: string };
  const small = await medianMs(server, `/v1/batches/${one.id}`);
  const comparedWith = `a batch of one item ${format(small)} ms`;
  return [
    {
      name: 'status without items, 50,000 half done',
      value: await medianMs(server, `/v1/batches/${batch.id}?items=false`),
      unit: 'ms',
      comparedWith,
      target: { atMost: 60 },
    },
    {
      name: 'status with items, 50,000 half done',
      value: await medianMs(server, `/v1/batches/${batch.id}`),
      unit: 'ms',
      comparedWith,
      target: { atMost: 150 },
    },
  ];
}

const ONE_ITEM = Buffer.from('{"shape":"openai","requests":[{"model":"bench","messages":[]}]}');

async function medianMs(server: BenchServer, path: string): Promise<number> {
  await call(server, 'GET', path);
  const times: number[] = [];
  for (let i = 0; i < ROUNDS; i++) times.push(await timed(() => call(server, 'GET', path)));
  return median(times);
}
