import { Buffer } from 'node:buffer';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import process from 'node:process';
import { setTimeout as delay } from 'node:timers/promises';
import { systemClock } from '../lib/base/clock.ts';
import { inTurns, pacer, piecesOf } from '../lib/base/turns.ts';
import type { FinalItem } from '../lib/batch/results/final-items.ts';
import { checksumItems } from '../lib/batch/submit/slice.ts';
import { parseSubmission } from '../lib/batch/submit/submission.ts';
import { CREATE_LIMITS, createBodyReader } from '../lib/surfaces/anthropic/create-body.ts';
import { resultLineInSteps as anthropicLine, resultType } from '../lib/surfaces/anthropic/result-line.ts';
import { resultLineInSteps as openaiLine } from '../lib/surfaces/openai/result-line.ts';
import { inputCheck } from '../lib/surfaces/openai/validation/input-check.ts';
import { createUpstreamClient } from '../lib/upstream/client.ts';
import { peekItemInSteps } from '../lib/upstream/item-body.ts';
import { judgeLargeBody } from '../lib/upstream/judge-answer.ts';
import { HOSTILE } from '../test/support/hostile.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format } from './support/figure.ts';
import { peakGrowth } from './support/process.ts';

const MIB = 2 ** 20;
/** The largest request, and nearly the largest answer. */
const REQUEST_BYTES = 32 * MIB;
const ANSWER_BYTES = 63 * MIB;
/**
 * Nothing that comes in holds the event loop longer ("The event loop" in docs/spec/engine-guarantees.md). On a machine that
 * does other things too, the delay holds their time, and the CPU time of a turn is what to look at.
 */
const MOST_MS = 50;
const AT_ONCE = 64;

const URL_OF_LINE = '/v1/chat/completions';

/** The longest delay of the event loop while each hostile input is read, by everything that reads one. */
export async function benchHostile(bed: Bed): Promise<Figure[]> {
  const port = await startUpstream(bed);
  const client = createUpstreamClient({ connections: AT_ONCE, userAgent: 'bench', clock: systemClock });
  bed.defer(() => client.close());
  const call = (status: number, how: string, name: string) =>
    client.call({
      url: `http://127.0.0.1:${port}/${status}/${how}/${encodeURIComponent(name)}`,
      headers: {},
      body: [Buffer.from('{}')],
      adapter: 'openai',
      timeoutMs: 300_000,
      signal: new AbortController().signal,
    });
  const answered = async (status: number, how: string, name: string) => {
    const { body } = await call(status, how, name);
    client.release(body);
  };

  const figures: Figure[] = [];
  const add = async (what: string, comparedWith: string, work: () => Promise<unknown>) => {
    const { delayMs, cpuMs } = await longestTurn(work);
    const held = `${comparedWith}; at most ${format(cpuMs)} ms of CPU in one turn`;
    figures.push({ name: what, value: delayMs, unit: 'ms', comparedWith: held, target: { atMost: MOST_MS } });
  };
  await add('nothing', 'a second without work', () => delay(1000));
  for (const [name, make] of Object.entries(HOSTILE)) {
    const input = make(REQUEST_BYTES - 1024);
    for (const [what, read] of Object.entries(READERS)) {
      const bytes = PREPARE[what]?.(input, make) ?? input;
      await add(`${what}: ${name}`, `${format(bytes.length / MIB)} MiB`, () => read(bytes));
    }
    await add(`answer: ${name}`, '63 MiB', () => answered(200, 'whole', name));
    await add(`gzipped answer: ${name}`, '63 MiB', () => answered(200, 'gzip', name));
    await add(`refusal: ${name}`, '63 MiB', () => answered(400, 'whole', name));
  }
  await add('answer in 1-byte chunks', '1 MiB', () => answered(200, 'tiny', 'members with an escaped key'));
  return [
    ...figures,
    await growth('64 small gzips of 63 MiB at once', () => many(() => answered(200, 'gzip', 'a list of numbers'))),
    await growth('64 small gzips of 8 MiB at once', () => many(() => answered(200, 'dense', 'white space'))),
  ];
}

/** Makes the bytes that a reader gets, where these differ from the input. */
const PREPARE: Readonly<Record<string, (input: Buffer, make: (bytes: number) => Buffer) => Buffer>> = {
  'native item': (input) => Buffer.concat([Buffer.from('{"shape":"openai","requests":['), input, Buffer.from(']}')]),
  'openai custom_id': (input) => withoutQuotes(input),
  'result line of openai': (_input, make) => make(ANSWER_BYTES),
  'result line of anthropic': (_input, make) => make(ANSWER_BYTES),
};

/** The readers, each with the call that reads the bytes; faults are answers, too. */
const READERS: Readonly<Record<string, (bytes: Buffer) => Promise<unknown>>> = {
  'native document': (bytes) => ignoringFaults(() => parseSubmission(bytes, 50_000)),
  'native item': (bytes) =>
    ignoringFaults(async () => {
      const submission = await parseSubmission(bytes, 50_000);
      if ('items' in submission) await checksumItems(bytes, submission.items);
    }),
  'anthropic document': (bytes) => ignoringFaults(() => create([bytes])),
  'anthropic element': (bytes) =>
    ignoringFaults(() => create([Buffer.from('{"requests":['), bytes, Buffer.from(']}')])),
  'anthropic params': (bytes) =>
    ignoringFaults(() => create([Buffer.from('{"requests":[{"custom_id":"a","params":'), bytes, Buffer.from('}]}')])),
  'openai line': (bytes) => ignoringFaults(() => check([bytes])),
  'openai body': (bytes) =>
    ignoringFaults(() =>
      check([Buffer.from(`{"custom_id":"a","method":"POST","url":"${URL_OF_LINE}","body":`), bytes, Buffer.from('}')]),
    ),
  'openai custom_id': (bytes) => ignoringFaults(() => check([Buffer.from('{"custom_id":"'), bytes, Buffer.from('"}')])),
  'item in the worker': (bytes) => inTurns(peekItemInSteps(bytes), bytes.length),
  'item of embeddings': (bytes) => inTurns(peekItemInSteps(bytes, true), bytes.length),
  'answer of embeddings': (bytes) => inTurns(judgeLargeBody({ adapter: 'openai_embeddings' }, bytes), bytes.length),
  'result line of openai': (bytes) => inTurns(openaiLine('b', Buffer.from('"a"'), refusal(bytes)), bytes.length),
  'result line of anthropic': (bytes) => {
    const item = refusal(bytes);
    return inTurns(anthropicLine(Buffer.from('"a"'), item, resultType(item), 'req'), bytes.length);
  },
};

function refusal(body: Buffer): FinalItem {
  return { idx: 0, state: 'discarded', error: 'batch item: upstream status 400', errorKind: null, status: 400, body };
}

/** The inside of a string that has as many escapes as there are quotes and line ends in `bytes`. */
function withoutQuotes(bytes: Buffer): Buffer {
  const inside = Buffer.from(bytes);
  for (let at = 0; at < inside.length; at++) if (inside[at] === 0x22 || inside[at] === 0x0a) inside[at] = 0x5c;
  return inside;
}

async function create(parts: Buffer[]): Promise<void> {
  const reader = createBodyReader(CREATE_LIMITS);
  const pace = pacer();
  for (const part of parts) for (const piece of piecesOf(part)) await pace(reader.push(piece));
  reader.end();
}

async function check(parts: Buffer[]): Promise<void> {
  const checking = inputCheck(URL_OF_LINE);
  const pace = pacer();
  for (const part of parts) for (const piece of piecesOf(part)) await pace(checking.push(piece));
  await pace(checking.end());
}

async function ignoringFaults(work: () => Promise<unknown>): Promise<void> {
  await work().catch((error) => {
    if (!('code' in error)) throw error;
  });
}

/** The longest time between two turns of the event loop, and how much of one this thread worked, ms. */
async function longestTurn(work: () => Promise<unknown>): Promise<{ delayMs: number; cpuMs: number }> {
  globalThis.gc?.();
  await delay(20);
  const histogram = monitorEventLoopDelay({ resolution: 1 });
  let cpu = process.threadCpuUsage();
  let cpuMs = 0;
  const turn = () => {
    const { user, system } = process.threadCpuUsage(cpu);
    cpuMs = Math.max(cpuMs, (user + system) / 1000);
    cpu = process.threadCpuUsage();
    timer = setImmediate(turn);
  };
  let timer = setImmediate(turn);
  histogram.enable();
  await delay(5);
  await work();
  await delay(5);
  histogram.disable();
  clearImmediate(timer);
  return { delayMs: histogram.max / 1e6, cpuMs };
}

function many(work: () => Promise<unknown>): Promise<unknown> {
  return Promise.all(Array.from({ length: AT_ONCE }, work));
}

/** By how much this process grows: the budget, one answer more, and what V8 has not collected yet. */
async function growth(name: string, work: () => Promise<unknown>): Promise<Figure> {
  const grown = await peakGrowth(process.pid, work);
  return {
    name,
    value: (grown ?? Number.NaN) / MIB,
    unit: 'MiB',
    comparedWith: 'peak growth of the process; the promise of docs/performance.md is 500',
    target: { atMost: 500 },
  };
}

async function startUpstream(bed: Bed): Promise<number> {
  const script = new URL('./support/hostile-upstream.ts', import.meta.url);
  const upstream = fork(script, [String(ANSWER_BYTES)]);
  bed.defer(async () => upstream.kill('SIGKILL'));
  const [port] = (await once(upstream, 'message')) as [number];
  return port;
}
