import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Agent, FormData, request } from 'undici';
import { call } from './support/batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './support/bed.ts';
import { type Figure, format, timed } from './support/figure.ts';
import { itemBody, KEYS } from './support/items.ts';
import { peakGrowth } from './support/process.ts';
import { writeDurably } from './support/write-durably.ts';

const MIB = 2 ** 20;
const REQUESTS = 50_000;
const FILE_BYTES = 200 * MIB;
const LARGE = 6;
const ANSWER_BYTES = 2048;
/** Front-doors: the most that memory may grow, however large the file. */
const GROWTH_MIB = 64;

/**
 * Measures the validation of the largest batch file, 50,000 lines and 200 MiB, and the same of lines of 31 MiB, beside
 * one fsynced write of it. Then the result files of 50,000 answers of 2 KB: from the last item's end to the batch's.
 */
export async function benchOpenaiBatches(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const server = await bed.server({ database, concurrency: 0 });
  const directory = await bed.directory();
  await validated(server, database, inputFile(2000, 2000)); // warms up

  const validation = async (name: string, file: Buffer): Promise<Figure[]> => {
    const plain = await timed(() => writeDurably(join(directory, String(file.length)), file));
    const fileId = await upload(server, file);
    let ms = 0;
    const growth = await peakGrowth(server.pid, async () => {
      ms = (await started(server, database, fileId)).ms;
    });
    const speed = `${format(file.length / 1000 / ms)} MB/s`;
    return [
      {
        name: `validation of ${name}, ${format(file.length / MIB)} MiB`,
        value: ms / plain,
        unit: 'times',
        comparedWith: `one fsynced write ${format(plain)} ms, this ${format(ms)} ms, ${speed}`,
      },
      memory(growth),
    ];
  };
  return [
    ...(await validation('50,000 lines', inputFile(REQUESTS, Math.floor(FILE_BYTES / REQUESTS)))),
    ...(await validation('6 lines', inputFile(LARGE, 31 * MIB))),
    ...(await resultFiles(bed)),
  ];
}

async function resultFiles(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream({ answerBytes: ANSWER_BYTES });
  const server = await bed.server({ database, upstream, concurrency: 64 });
  const small = await validated(server, database, inputFile(2000, 0)); // warms up
  await ended(database, small.id);
  const fileId = await upload(server, inputFile(REQUESTS, 0));
  const { id } = await started(server, database, fileId);
  for (;;) {
    const [row] = await database.sql<{ open: number }>('select open_items as open from batches where id = $1', [id]);
    if (row!.open < REQUESTS / 50) break;
    await delay(20);
  }
  const growth = await peakGrowth(server.pid, () => ended(database, id));
  const [row] = await database.sql<{ ms: number; completed: number; bytes: number }>(
    `select extract(epoch from o.ended_at - b.completed_at)::float8 * 1000 as ms, f.bytes::float8 as bytes,
      (b.final_counts ->> 'completed')::int as completed
    from openai_batches o join batches b on b.id = o.id join files f on f.id = o.output_file_id where o.id = $1`,
    [id],
  );
  if (row?.completed !== REQUESTS) throw new Error(`${row?.completed} of ${REQUESTS} items were completed`);
  return [
    {
      name: 'result files of 50,000 x 2 KB',
      value: row.ms,
      unit: 'ms',
      comparedWith: `${format(row.bytes / MIB)} MiB, ${format(row.bytes / 1000 / row.ms)} MB/s, after the last item's end`,
    },
    memory(growth),
  ];
}

function memory(growth: number | null): Figure {
  return {
    name: '  peak growth of resident memory',
    value: (growth ?? Number.NaN) / MIB,
    unit: 'MiB',
    comparedWith: 'the server before it',
    target: { atMost: GROWTH_MIB },
  };
}

interface Started {
  id: string;
  /** From the create's answer until the items exist, by Postgres' clock. */
  ms: number;
}

async function validated(server: BenchServer, database: BenchDatabase, file: Buffer): Promise<Started> {
  return started(server, database, await upload(server, file));
}

async function started(server: BenchServer, database: BenchDatabase, fileId: string): Promise<Started> {
  const create = { input_file_id: fileId, endpoint: '/v1/chat/completions', completion_window: '24h' };
  const answer = await call(server, 'POST', '/v1/batches', Buffer.from(JSON.stringify(create)));
  const { id: publicId } = JSON.parse(answer.toString()) as { id: string };
  for (;;) {
    const [row] = await database.sql<{ id: string; ms: number | null; failed: boolean }>(
      `select id, extract(epoch from in_progress_at - created_at)::float8 * 1000 as ms, final_status = 'failed' as failed
      from openai_batches where 'batch_' || replace(id::text, '-', '') = $1`,
      [publicId],
    );
    if (row?.failed) throw new Error('the batch failed its validation');
    // in_progress_at is the time of a statement; the row shows it once its transaction has the items.
    if (row?.ms != null) return { id: row.id, ms: row.ms };
    await delay(10);
  }
}

async function ended(database: BenchDatabase, id: string): Promise<void> {
  for (;;) {
    const [row] = await database.sql<{ done: boolean }>(
      'select ended_at is not null as done from openai_batches where id = $1',
      [id],
    );
    if (row?.done) return;
    await delay(20);
  }
}

async function upload(server: BenchServer, file: Buffer): Promise<string> {
  const form = new FormData();
  form.append('purpose', 'batch');
  form.append('file', new File([new Uint8Array(file.buffer, file.byteOffset, file.length)], 'bench.jsonl'));
  // A connection of its own: this process was busy while it made the file, and idle connections may have been closed.
  const dispatcher = new Agent();
  const response = await request(`${server.url}/v1/files`, {
    dispatcher,
    method: 'POST',
    headers: { authorization: `Bearer ${KEYS.plain}` },
    body: form,
  });
  const answer = await response.body.text();
  await dispatcher.close();
  if (response.statusCode !== 200) throw new Error(`upload: ${response.statusCode} ${answer}`);
  return (JSON.parse(answer) as { id: string }).id;
}

/** A batch file of `count` lines with bodies of about `bytes` bytes each. */
function inputFile(count: number, bytes: number): Buffer {
  const lines = Array.from({ length: count }, (_, i) => {
    const head = `{"custom_id":"request-${i}","method":"POST","url":"/v1/chat/completions","body":`;
    return Buffer.from(`${head}${itemBody(i, Math.max(0, bytes - head.length - 2))}}\n`);
  });
  return Buffer.concat(lines);
}
