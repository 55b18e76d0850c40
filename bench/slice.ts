import { Buffer } from 'node:buffer';
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { checksumItems, sliceSubmission } from '../lib/batch/submit/slice.ts';
import { peekItem } from '../lib/upstream/item-body.ts';

/** One figure of a benchmark, and what to compare it with. */
export interface Figure {
  name: string;
  value: number;
  unit: string;
  comparedWith: string;
}

const ITEMS = 50_000;
const BODY_BYTES = 32 * 1024 * 1024;

/** A submission of 50,000 chat requests that fills 32 MiB: text with line ends, quotes and some non-ASCII. */
function submission(): Buffer {
  const sentence = 'Summarise the following notes in two sentences, keep "quoted" names as they are: café, 東京.\n';
  const items = Array.from({ length: ITEMS }, (_, i) => ({
    model: 'gpt-4o',
    messages: [
      { role: 'system', content: 'You are a careful assistant.' },
      { role: 'user', content: `${i} ${sentence.repeat(5)}` },
    ],
    temperature: 0.2,
    max_tokens: 256,
    seed: 1000 + i,
  }));
  const body = Buffer.from(JSON.stringify({ shape: 'openai', requests: items }));
  // White space at the end is legal JSON, but it would flatter the scanner. So a long member fills the rest instead.
  const filler = Buffer.from(`{"note":"${'x'.repeat(Math.max(0, BODY_BYTES - body.length - 11))}",`);
  return Buffer.concat([filler, body.subarray(1)]);
}

/** Returns the best of several runs, in ms: the least disturbed one, on a machine that does other things too. */
function bestOf(runs: number, work: () => void): number {
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < runs; i++) {
    const start = performance.now();
    work();
    best = Math.min(best, performance.now() - start);
  }
  return best;
}

/** Slicing against JSON.parse on the same 32 MiB body of 50,000 items, and the cost of an item when it runs. */
export async function benchSlice(): Promise<Figure[]> {
  const body = submission();
  const sliced = sliceSubmission(body, ITEMS);
  if (!sliced.ok || sliced.requests === null || sliced.requests === 'not_array' || sliced.requests.sent !== ITEMS) {
    throw new Error('the benchmark body was not sliced into its items');
  }
  const spans = sliced.requests;
  const megabytes = body.length / 1e6;
  const slice = bestOf(7, () => void sliceSubmission(body, ITEMS));
  const parse = bestOf(5, () => void JSON.parse(body.toString()));
  const started = performance.now();
  await checksumItems(body, spans);
  const crc = performance.now() - started;

  const items = Array.from({ length: ITEMS }, (_, i) =>
    body.subarray(spans.offsets[i]!, spans.offsets[i]! + spans.lengths[i]!),
  );
  const peek = bestOf(7, () => items.forEach((item) => void peekItem(item)));
  const parseItem = bestOf(5, () => items.forEach((item) => void JSON.parse(item.toString())));

  const size = `${ITEMS} items, ${(body.length / 2 ** 20).toFixed(1)} MiB`;
  return [
    { name: 'slice', value: megabytes / (slice / 1e3), unit: 'MB/s', comparedWith: `JSON.parse, ${size}` },
    { name: 'JSON.parse', value: megabytes / (parse / 1e3), unit: 'MB/s', comparedWith: 'the same body' },
    { name: 'slice / JSON.parse', value: parse / slice, unit: 'times as fast', comparedWith: 'JSON.parse' },
    { name: 'CRC32 of every item', value: crc, unit: 'ms', comparedWith: `slicing: ${slice.toFixed(1)} ms` },
    { name: 'peekItem', value: (peek * 1e3) / ITEMS, unit: 'us/item', comparedWith: 'JSON.parse of the item' },
    { name: 'JSON.parse of the item', value: (parseItem * 1e3) / ITEMS, unit: 'us/item', comparedWith: 'peekItem' },
  ];
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const { name, value, unit, comparedWith } of await benchSlice()) {
    process.stdout.write(`${name.padEnd(24)} ${value.toFixed(2).padStart(9)} ${unit} (${comparedWith})\n`);
  }
}
