import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { type ClientRequest, get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { sql } from '../support/sql.ts';
import { call, completed, eventually, finished, itemsOf, submit } from './support/calls.ts';
import { KEYS } from './support/catalog.ts';
import { openScene, type Scene } from './support/scene.ts';

const ITEMS = 2500;
/** Far more than socket buffers hold, so that a reader who takes nothing holds the server up in the middle. */
const ANSWER_BYTES = 16 * 1024;

/** Answers that tell their items apart and are long. */
async function talkativeUpstream(scene: Scene) {
  const upstream = await scene.faultyUpstream();
  upstream.answerWith((request, response) => {
    if (request.model === 'hang') return;
    const { user } = JSON.parse(request.body.toString()) as { user: string };
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(`{"choices":[{"message":"${user} ${'x'.repeat(ANSWER_BYTES)}"}]}`);
  });
  return upstream;
}

/** Begins to read and stops in the middle; `rest` takes what is left: the text, or null when the connection broke. */
async function halfWay(url: string, path: string): Promise<{ rest(): Promise<string | null> }> {
  const request: ClientRequest = get(url + path, { headers: { authorization: `Bearer ${KEYS.RELAY_KEY_ANN}` } });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  expect(response.statusCode).toBe(200);
  const chunks: Buffer[] = [];
  let bytes = 0;
  await new Promise<void>((resolve) => {
    response.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes < 4 * 1024 * 1024) return;
      response.pause();
      response.removeAllListeners('data');
      resolve();
    });
  });
  return {
    rest: () =>
      new Promise((resolve) => {
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('end', () => resolve(response.complete ? Buffer.concat(chunks).toString() : null));
        response.on('error', () => resolve(null));
        response.on('close', () => resolve(null));
        response.resume();
      }),
  };
}

/** A whole document: every item in order with its own answer. */
function expectRight(text: string, prefix: string): void {
  const { results } = JSON.parse(text) as {
    results: { idx: number; state: string; response?: { choices: [{ message: string }] } }[];
  };
  expect(results.length).toBe(ITEMS);
  for (const [idx, result] of results.entries()) {
    expect(result.idx).toBe(idx);
    if (result.response === undefined) expect(result.state).not.toBe('completed');
    else expect(result.response.choices[0].message.split(' ')[0]).toBe(`${prefix}-${idx}`);
  }
}

describe('case 36: readers who are half way', { timeout: 120_000 }, () => {
  test('carry on when the batch is compacted and its segments are swept away', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await talkativeUpstream(scene);
    const server = await scene.start({ dsn, upstream });
    const id = await submit(
      server,
      itemsOf(ITEMS, 'swept', (idx) => (idx === ITEMS - 1 ? 'hang' : 'fast')),
    );
    await completed(server, id, ITEMS - 1);
    const path = `/v1/batches/${id}/results`;
    const readers = await Promise.all([halfWay(server.url, path), halfWay(server.url, `${path}?state=completed`)]);
    // The last item ends: by a cancel, so that the batch is finished without its answer.
    await call(server, 'POST', `/v1/batches/${id}/cancel`);
    await finished(server, id);
    await eventually(
      () => sql<{ results_id: string | null }>(db, 'select results_id from batches'),
      ([batch]) => batch!.results_id !== null,
    );
    expect(await sql(db, 'select count(*)::int as n from segment_refs')).toEqual([{ n: 0 }]);
    await rm(join(scene.dir, 'payloads', 'segment'), { recursive: true });

    const [whole, filtered] = await Promise.all(readers.map((reader) => reader.rest()));
    expectRight(whole!, 'swept');
    expect(JSON.parse(filtered!).results.length).toBe(ITEMS - 1);
    const after = await call(server, 'GET', path);
    expectRight(after.text, 'swept');
    // Pages say the same as the whole.
    const pages: unknown[] = [];
    for (let next: number | null = -1; next !== null; ) {
      const page = await call(server, 'GET', `${path}?limit=1000${next < 0 ? '' : `&after=${next}`}`);
      expect(page.text.length).toBeLessThan(4_600_000);
      pages.push(...page.json.results);
      next = page.json.next_after;
    }
    expect(pages).toEqual(after.json.results);
  });

  test('get the whole document or a broken connection when the batch is deleted', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await talkativeUpstream(scene);
    const server = await scene.start({ dsn, upstream });
    for (const compacted of [false, true]) {
      const prefix = `deleted${compacted}`;
      const id = await submit(server, itemsOf(ITEMS, prefix));
      const path = `/v1/batches/${id}/results`;
      await completed(server, id, ITEMS / 2);
      const early = compacted ? [] : [await halfWay(server.url, path)];
      await finished(server, id);
      await eventually(
        () => sql<{ results_id: string | null }>(db, 'select results_id from batches where id = $1::uuid', [id]),
        ([batch]) => batch!.results_id !== null,
      );
      const readers = [...early, await halfWay(server.url, path), await halfWay(server.url, `${path}?state=completed`)];
      expect((await call(server, 'DELETE', `/v1/batches/${id}`)).status).toBe(200);
      await rm(join(scene.dir, 'payloads', 'segment'), { recursive: true });
      for (const text of await Promise.all(readers.map((reader) => reader.rest()))) {
        if (text !== null) expectRight(text, prefix);
      }
      expect((await call(server, 'GET', path)).status).toBe(404);
      const [events] = await sql(db, 'select count(*)::int as n from usage_events where batch_id = $1::uuid', [id]);
      expect(events).toEqual({ n: ITEMS });
    }
    // And it still works.
    const id = await submit(server, itemsOf(20, 'after'));
    expect((await finished(server, id)).counts).toEqual({ completed: 20 });
  });

  test('who go away in the middle cost the server nothing', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await talkativeUpstream(scene);
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(ITEMS, 'away'));
    await finished(server, id);
    const path = `/v1/batches/${id}/results`;
    for (let n = 0; n < 10; n++) {
      const stop = new AbortController();
      const response = await fetch(server.url + path, {
        headers: { authorization: `Bearer ${KEYS.RELAY_KEY_ANN}` },
        signal: stop.signal,
      });
      await response.body!.getReader().read();
      stop.abort();
    }
    expectRight((await call(server, 'GET', path)).text, 'away');
    expect(server.running()).toBe(true);
    expect(server.log.filter(({ level }) => level === 'error' || level === 'fatal')).toEqual([]);
  });
});
