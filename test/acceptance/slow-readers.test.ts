import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { describe, expect, test } from 'vitest';
import type { ServerProcess } from '../support/server.ts';
import { call, completed, itemsOf, submit } from './support/calls.ts';
import { KEYS } from './support/catalog.ts';
import { peakMib } from './support/memory.ts';
import { openScene } from './support/scene.ts';

const READERS = 100;
const ITEMS = 2500;

describe.skipIf(!existsSync('/proc/self/status'))('readers that take nothing', { timeout: 120_000 }, () => {
  test('hold a bounded part of memory, and one owner has so many at most', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream({ answerBytes: 16 * 1024 });
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(ITEMS, 'slow'));
    await completed(server, id, ITEMS / 2);
    process.kill(upstream.pid, 'SIGSTOP'); // the batch stays in work
    scene.defer(async () => void process.kill(upstream.pid, 'SIGCONT'));
    const before = await peakMib(server);

    const path = `/v1/batches/${id}/results`;
    const readers = await Promise.all(Array.from({ length: READERS }, () => open(server, path)));
    scene.defer(async () => void readers.map((reader) => reader.destroy()));
    await Promise.all(readers.map((reader) => once(reader, 'readable')));
    await new Promise((resolve) => setTimeout(resolve, 2000)); // buffers of the system fill up
    expect((await peakMib(server)) - before).toBeLessThan(450);

    const refused = await call(server, 'GET', path);
    expect([refused.status, refused.json.error.code]).toEqual([429, 'too_many_streams']);
    expect(refused.headers.get('retry-after')).toBe('1');
    readers[0]!.destroy();
    await once(readers[0]!, 'close');
    const { status, json } = await retried(() => call(server, 'GET', path));
    expect([status, json.results.length]).toEqual([200, ITEMS]);
  });

  test('hold nothing of the answers that they pipeline', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream({ answerBytes: 16 * 1024 });
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(500, 'pipelined'));
    await completed(server, id, 500);
    const before = await peakMib(server);
    const socket = await open(server, `/v1/batches/${id}/results`, 300);
    await once(socket, 'readable');
    await new Promise((resolve) => setTimeout(resolve, 2000));
    expect((await peakMib(server)) - before).toBeLessThan(150);
    socket.destroy();
  });
});

/** Asks, `times` over on one connection, and reads nothing. */
async function open({ url }: ServerProcess, path: string, times = 1): Promise<Socket> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${KEYS.RELAY_KEY_ANN}\r\n\r\n`.repeat(times));
  return socket;
}

async function retried<Answer extends { status: number }>(ask: () => Promise<Answer>): Promise<Answer> {
  for (;;) {
    const answer = await ask();
    if (answer.status !== 429) return answer;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
