import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import type { ServerProcess } from '../support/server.ts';
import { call, finished, itemsOf, submit } from './support/calls.ts';
import { KEYS } from './support/catalog.ts';
import { peakMib } from './support/memory.ts';
import { openScene } from './support/scene.ts';

const MIB = 1024 * 1024;
const BODY = 32 * MIB;

/** A submit of one item, as large as a body may be. */
const LARGE = Buffer.from(
  `{"shape":"openai","requests":[{"model":"fast","pad":"${'x'.repeat(BODY - 100)}"}]}`.padEnd(BODY, ' '),
);

describe.skipIf(!existsSync('/proc/self/status'))('the memory of request bodies', { timeout: 120_000 }, () => {
  test('is bounded, whoever sends what', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream();
    const server = await scene.start({ dsn, upstream, env: { RELAY_BODY_MEMORY_MIB: '128' } });
    await finished(server, await submit(server, itemsOf(10, 'first')));
    const before = await peakMib(server);

    // Without a key: chunks of one byte, and many large bodies.
    const chunked = await Promise.all(Array.from({ length: 40 }, () => tinyChunks(server, {}, 50_000)));
    for (const answer of chunked) expect(answer).toContain('missing relay key');
    const strangers = await Promise.all(Array.from({ length: 40 }, () => post(server, '/v1/batches', null)));
    expect(new Set(strangers)).toEqual(new Set([401]));
    expect((await peakMib(server)) - before).toBeLessThan(150);

    // With one: as many bodies as there is room for.
    const known = await Promise.all(Array.from({ length: 12 }, () => post(server, '/v1/batches', KEYS.RELAY_KEY_ANN)));
    expect(known.filter((status) => status !== 202 && status !== 503)).toEqual([]);
    expect(known).toContain(202);
    const authorization = `Bearer ${KEYS.RELAY_KEY_ANN}`;
    expect(await tinyChunks(server, { authorization }, 300_000)).toContain('"error"');
    expect((await peakMib(server)) - before).toBeLessThan(128 + 300);
    expect(await bodyMemory(server)).toBe(0);
  });

  test('holds one upload once, however many submits name it', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream();
    const server = await scene.start({ dsn, upstream });
    const before = await peakMib(server);
    const upload = await call(server, 'POST', '/v1/uploads', JSON.stringify({ bytes: LARGE.length }));
    const sent = await fetch(upload.json.upload_url, { method: 'PUT', body: LARGE });
    expect(sent.status).toBe(200);
    const names = JSON.stringify({ upload_id: upload.json.upload_id });
    const answers = await Promise.all(Array.from({ length: 300 }, () => call(server, 'POST', '/v1/batches', names)));
    const codes = answers.map(({ status, json }) => (status === 202 ? 'made' : json.error.code));
    expect(codes.filter((code) => code === 'made')).toHaveLength(1);
    expect(codes.filter((code) => code === 'upload_used')).toHaveLength(299);
    expect((await peakMib(server)) - before).toBeLessThan(250);
  });

  test('holds few large requests of message batches at once', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream();
    const server = await scene.start({ dsn, upstream, env: { RELAY_BODY_MEMORY_MIB: '128' } });
    const before = await peakMib(server);
    const pad = 'x'.repeat(BODY - 1000);
    const params = `{"model":"fast","max_tokens":1,"messages":[],"metadata":{"pad":"${pad}"}}`;
    const body = Buffer.from(`{"requests":[{"custom_id":"a","params":${params}}]}`);
    const statuses = await Promise.all(
      Array.from({ length: 12 }, () => post(server, '/v1/messages/batches', KEYS.RELAY_KEY_ANN, body)),
    );
    expect(statuses.filter((status) => status !== 200 && status !== 503)).toEqual([]);
    expect(statuses).toContain(200);
    expect((await peakMib(server)) - before).toBeLessThan(128 + 300);
    expect(await bodyMemory(server)).toBe(0);
  });
});

async function post({ url }: ServerProcess, path: string, key: string | null, body = LARGE): Promise<number> {
  const headers: Record<string, string> = key === null ? {} : { authorization: `Bearer ${key}` };
  const answer = await fetch(url + path, { method: 'POST', headers, body: body as NonNullable<RequestInit['body']> });
  await answer.arrayBuffer();
  return answer.status;
}

/** Sends a body in chunks of one byte and returns the whole answer. */
async function tinyChunks({ url }: ServerProcess, headers: Record<string, string>, count: number): Promise<string> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => {});
  const lines = Object.entries({ host: 'x', connection: 'close', 'transfer-encoding': 'chunked', ...headers });
  socket.write(`POST /v1/batches HTTP/1.1\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`);
  const chunks = '1\r\nx\r\n'.repeat(10_000);
  let text = '';
  socket.on('data', (data) => {
    text += data;
  });
  const closed = once(socket, 'close');
  for (let i = 0; i < count / 10_000 && !socket.destroyed; i++) {
    if (!socket.write(chunks)) await Promise.race([once(socket, 'drain'), closed]);
  }
  if (!socket.destroyed) socket.write('0\r\n\r\n');
  await closed;
  return text;
}

async function bodyMemory({ controlUrl }: ServerProcess): Promise<number> {
  const text = await (await fetch(`${controlUrl}/metrics`)).text();
  return Number(/^relay_batch_body_memory_bytes (\d+)$/m.exec(text)![1]);
}
