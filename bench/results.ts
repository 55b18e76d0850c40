import { request } from 'undici';
import { finished, submit } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { serveFile } from './support/file-server.ts';
import { halfDone, splitSegments } from './support/half-done.ts';
import { KEYS, submission } from './support/items.ts';
import { peakGrowth } from './support/process.ts';

const ITEMS = 50_000;
const ANSWER_BYTES = 2048;
const ROUNDS = 7;
/** The items of a small segment: 10 KB. */
const EACH = 5;
const MIB = 2 ** 20;

interface Download {
  firstByteMs: number;
  bytesPerMs: number;
  bytes: number;
}

/**
 * Reads the results of 50,000 answers of 2 KB, beside one file of that size. One batch is finished. Two are half done:
 * one in the segments of fast answers, the other in thousands of small ones.
 */
export async function benchResults(bed: Bed): Promise<Figure[]> {
  const half = await halfDone(bed, ITEMS, ANSWER_BYTES);
  const halfUrl = `${half.server.url}/v1/batches/${half.batch.id}/results`;
  const running = await downloads(halfUrl, half.server.pid);
  const slow = await halfDone(bed, ITEMS, ANSWER_BYTES);
  const segments = await splitSegments(slow, EACH);
  const slowUrl = `${slow.server.url}/v1/batches/${slow.batch.id}/results`;
  const scattered = await downloads(slowUrl, slow.server.pid);

  const database = await bed.database();
  const upstream = await bed.upstream({ answerBytes: ANSWER_BYTES });
  const server = await bed.server({ database, upstream, concurrency: 64 });
  const batch = await submit(server, submission(ITEMS));
  await finished(database, batch);
  const [row] = await database.sql<{ id: string }>('select results_id as id from batches where id = $1', [batch.id]);
  const file = await serveFile(server.payloadDir, row!.id);
  bed.defer(() => file.stop());

  await download(file.url);
  const rounds: Record<'file' | 'ours' | 'half' | 'slow', Download>[] = [];
  const ours = await downloads(`${server.url}/v1/batches/${batch.id}/results`, server.pid, async (finishedOne) => {
    rounds.push({
      file: await download(file.url),
      ours: finishedOne,
      half: await download(halfUrl),
      slow: await download(slowUrl),
    });
  });
  await Promise.all([half.server.stop(), slow.server.stop()]);
  const priceOf = (which: 'half' | 'slow', name: string): Figure => ({
    name,
    value: median(rounds.map((round) => round.ours.bytesPerMs / round[which].bytesPerMs)),
    unit: 'times',
    comparedWith: `the finished batch ${speed(ours.bytesPerMs)}, this ${speed(median(rounds.map((round) => round[which].bytesPerMs)))}; in alternation`,
    target: { atMost: 2 },
  });
  const fileSpeed = median(rounds.map((round) => round.file.bytesPerMs));
  const fileFirstByte = median(rounds.map((round) => round.file.firstByteMs));
  const size = `${format(ours.bytes / MIB)} MiB`;
  return [
    ...figuresOf('finished', ours, `that of one file of ${size} ${format(fileFirstByte)} ms`),
    {
      name: '  speed, finished',
      value: 100 * median(rounds.map((round) => round.ours.bytesPerMs / round.file.bytesPerMs)),
      unit: '% of file',
      comparedWith: `one file of ${size} through the same adapter ${speed(fileSpeed)}, this ${speed(ours.bytesPerMs)}`,
      target: { atLeast: 50 },
    },
    ...figuresOf(
      'half done',
      running,
      `the same; ${format(running.bytes / MIB)} MiB, from the segments of group commits`,
    ),
    priceOf('half', '  time for a byte, half done'),
    ...figuresOf(
      `half done in ${segments} segments`,
      scattered,
      `the same; ${format(scattered.bytes / MIB)} MiB, ${EACH} answers a segment`,
    ),
    priceOf('slow', `  time for a byte, half done in ${segments} segments`),
  ];
}

interface Downloads extends Download {
  growth: number;
}

/** Returns the medians of several downloads, and the highest peak of the server's memory above its start. */
async function downloads(
  url: string,
  pid: number,
  after: (download: Download) => Promise<void> = async () => {},
): Promise<Downloads> {
  await download(url);
  const all: Download[] = [];
  let growth = 0;
  for (let i = 0; i < ROUNDS; i++) {
    growth = Math.max(growth, (await peakGrowth(pid, async () => void all.push(await download(url)))) ?? 0);
    await after(all.at(-1)!);
  }
  return {
    growth,
    bytes: all[0]!.bytes,
    firstByteMs: median(all.map((one) => one.firstByteMs)),
    bytesPerMs: median(all.map((one) => one.bytesPerMs)),
  };
}

async function download(url: string): Promise<Download> {
  const start = performance.now();
  const response = await request(url, { headers: { authorization: `Bearer ${KEYS.plain}` } });
  if (response.statusCode !== 200) throw new Error(`${url}: ${response.statusCode}`);
  let firstByteMs: number | null = null;
  let bytes = 0;
  for await (const chunk of response.body) {
    firstByteMs ??= performance.now() - start;
    bytes += (chunk as Buffer).length;
  }
  return { firstByteMs: firstByteMs ?? 0, bytes, bytesPerMs: bytes / (performance.now() - start) };
}

function figuresOf(what: string, { firstByteMs, growth }: Downloads, about: string): Figure[] {
  return [
    {
      name: `results of 50,000 x 2 KB, ${what}: first byte`,
      value: firstByteMs,
      unit: 'ms',
      comparedWith: about,
      target: { atMost: 150 },
    },
    {
      name: `  peak growth of resident memory, ${what}`,
      value: growth / MIB,
      unit: 'MiB',
      comparedWith: 'the server before the call, after one to warm up',
      target: { atMost: 64 },
    },
  ];
}

const speed = (bytesPerMs: number) => `${format(bytesPerMs / 1000)} MB/s`;
