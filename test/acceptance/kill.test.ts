import { describe, expect, test } from 'vitest';
import { ageLeases } from '../support/aging.ts';
import { sql } from '../support/sql.ts';
import { call, completed, expectRecordedOnce, finished, itemsOf, submit } from './support/calls.ts';
import { openScene } from './support/scene.ts';

/** Items that were sent upstream more than once. */
async function sentTwice(upstream: { stats(): Promise<{ users: Record<string, number> }> }): Promise<string[]> {
  const { users } = await upstream.stats();
  return Object.keys(users).filter((user) => users[user]! > 1);
}

describe.concurrent('killed servers', { timeout: 150_000 }, () => {
  test('case 14: resumes at once after kill -9, and finished items do not run again', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const options = { dsn: database.dsn, upstream };
    const first = await scene.start(options);
    const id = await submit(first, itemsOf(1500, 'kill'));
    await completed(first, id, 300);
    await first.kill();
    const final = await sql<{ idx: number }>(
      database.db,
      `select idx from batch_items where batch_id = $1::uuid and state = 'completed'`,
      [id],
    );
    const running = await sql<{ idx: number }>(
      database.db,
      `select idx from batch_items where batch_id = $1::uuid and state = 'running'`,
      [id],
    );
    expect(running.length).toBeGreaterThan(0);

    const second = await scene.start(options);
    // Its own former items are taken back before it says that it is ready: no lease has to run out.
    const [left] = await sql(
      database.db,
      "select count(*)::int as n from workers w where not exists (select from batch_items i where i.worker_id = w.id) and beat_at < clock_timestamp() - interval '25 seconds'",
    );
    expect(left).toEqual({ n: 0 });
    await finished(second, id, 25_000);
    await expectRecordedOnce(second, database.db, id, 1500);
    const twice = new Set(await sentTwice(upstream));
    expect(final.filter(({ idx }) => twice.has(`kill-${idx}`))).toEqual([]);
    const couldRunAgain = new Set(running.map(({ idx }) => `kill-${idx}`));
    expect([...twice].filter((user) => !couldRunAgain.has(user))).toEqual([]);
  });

  test('recovers server and embedded Postgres when both are killed', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const options = { dsn: null, upstream };
    const first = await scene.start(options);
    const id = await submit(first, itemsOf(1500, 'both'));
    await completed(first, id, 200);
    const { readPidFile } = await import('../../lib/postgres/postmaster.ts');
    const postmaster = (await readPidFile(`${scene.dir}/a/data/postgres`))!;
    process.kill(postmaster.pid, 'SIGKILL');
    await first.kill();

    const second = await scene.start(options);
    const status = await finished(second, id);
    expect(status.counts).toEqual({ completed: 1500 });
    const { json } = await call(second, 'GET', `/v1/batches/${id}/results`);
    expect(json.results.length).toBe(1500);
    expect(await second.stop()).toBe(0);
  });

  test('finishes the items of a killed replica on the other one', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 100 });
    const [first, second] = await Promise.all([
      scene.start({ dsn: database.dsn, upstream, home: 'a', quick: true }),
      scene.start({ dsn: database.dsn, upstream, home: 'b', quick: true }),
    ]);
    const id = await submit(first!, itemsOf(1200, 'two'));
    await completed(second!, id, 300);
    await first!.kill();
    const final = await sql<{ idx: number }>(
      database.db,
      `select idx from batch_items where batch_id = $1::uuid and state = 'completed'`,
      [id],
    );
    await ageLeases(database.db);
    await finished(second!, id);
    await expectRecordedOnce(second!, database.db, id, 1200);
    const twice = new Set(await sentTwice(upstream));
    expect(final.filter(({ idx }) => twice.has(`two-${idx}`))).toEqual([]);
    expect(twice.size).toBeLessThan(100);
  });

  test('keeps a worker frozen past its lease from overwriting, and lets it work again', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.faultyUpstream();
    const env = { RELAY_BATCH_CONCURRENCY: '4', RELAY_BATCH_FLUSH_MS: '0' };
    const frozen = await scene.start({ dsn: database.dsn, upstream, home: 'a', env, quick: true });
    const answers: ((text: string) => void)[] = [];
    upstream.answerWith((_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      answers.push((text) => response.end(`{"choices":[{"message":"${text}"}]}`));
    });
    const id = await submit(frozen, itemsOf(4, 'frozen'));
    await upstream.waitForRequests(4);
    frozen.signal('SIGSTOP');
    for (const answer of answers.splice(0)) answer('of the frozen one'); // they wait in its sockets
    const other = await scene.start({ dsn: database.dsn, upstream, home: 'b', env, quick: true });
    await upstream.waitForRequests(8);
    frozen.signal('SIGCONT');
    await frozen.logged('lease lost, continuing under a new id');
    for (const answer of answers.splice(0)) answer('of the other one');
    await finished(other, id);
    await expectRecordedOnce(other, database.db, id, 4);
    const { json } = await call(other, 'GET', `/v1/batches/${id}/results`);
    const messages = json.results.map((result: { response: { choices: [{ message: string }] } }) => {
      return result.response.choices[0].message;
    });
    expect(messages).toEqual(Array.from({ length: 4 }, () => 'of the other one'));
    expect(upstream.received.length).toBe(8);

    upstream.answerWith(null);
    await other.kill();
    expect(frozen.running()).toBe(true);
    const again = await submit(frozen, itemsOf(20, 'awake'));
    await finished(frozen, again);
    await expectRecordedOnce(frozen, database.db, again, 20);
  });

  test('takes the answers that came while it was frozen, when nobody took its items', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.faultyUpstream();
    const env = { RELAY_BATCH_CONCURRENCY: '4' };
    const server = await scene.start({ dsn: database.dsn, upstream, env, quick: true });
    const letGo = upstream.hold();
    const id = await submit(server, itemsOf(30, 'alone'));
    await upstream.waitForRequests(4);
    server.signal('SIGSTOP');
    letGo();
    await new Promise((resolve) => setTimeout(resolve, 8000)); // longer than the lease of 6 s
    server.signal('SIGCONT');
    await finished(server, id);
    await expectRecordedOnce(server, database.db, id, 30);
    expect(upstream.received.length).toBe(30);
  });

  test('discards an item that three workers were lost with, and says so', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.faultyUpstream();
    let server = await scene.start({ dsn: database.dsn, upstream });
    const id = await submit(server, itemsOf(2, 'deadly', 'hang'));
    for (let lost = 1; lost <= 3; lost++) {
      await upstream.waitForRequests(2 * lost);
      await server.kill();
      server = await scene.start({ dsn: database.dsn, upstream });
    }
    await finished(server, id);
    await expectRecordedOnce(server, database.db, id, 2);
    const { json } = await call(server, 'GET', `/v1/batches/${id}/results`);
    const error = 'batch item: interrupted: 3 workers lost';
    expect(json.results).toEqual([0, 1].map((idx) => ({ idx, state: 'discarded', error })));
    expect(upstream.received.length).toBe(6);
  });

  test('never sends an item twice with RELAY_BATCH_ON_WORKER_LOSS=discard', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 50 });
    const options = { dsn: database.dsn, upstream, env: { RELAY_BATCH_ON_WORKER_LOSS: 'discard' } };
    const first = await scene.start(options);
    const id = await submit(first, itemsOf(800, 'once'));
    await completed(first, id, 100);
    await first.kill();
    const second = await scene.start(options);
    const status = await finished(second, id);
    expect(status.counts.discarded).toBeGreaterThan(0);
    await expectRecordedOnce(second, database.db, id, 800);
    const errors = await sql(database.db, 'select distinct error from batch_items where error is not null');
    expect(errors).toEqual([{ error: 'batch item: interrupted: 1 worker lost' }]);
    expect(await sentTwice(upstream)).toEqual([]);
  });

  test('leaves a batch absent or whole when the server is killed during its submit', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const database = await scene.database();
    const upstream = await scene.countingUpstream();
    const body = itemsOf(4000, 'submit');
    let whole = 0;
    let absent = 0;
    for (let tries = 0; tries < 12; tries++) {
      const server = await scene.start({ dsn: database.dsn, upstream });
      const answer = call(server, 'POST', '/v1/batches', body).catch(() => null);
      // From "not yet read" to "answered", in steps.
      await new Promise((resolve) => setTimeout(resolve, 4 + tries * 12));
      await server.kill();
      await answer;
      const batches = await sql<{ id: string; total_items: number; items: number; cursors: number }>(
        database.db,
        `select b.id, b.total_items, (select count(*)::int from batch_items i where i.batch_id = b.id) as items
         from batches b order by b.id`,
      );
      for (const batch of batches) expect(batch).toMatchObject({ total_items: 4000, items: 4000 });
      if (batches.length > whole) whole++;
      else absent++;
      expect(batches.length).toBe(whole);
      const accepted = await answer;
      if (accepted) expect(batches.map((batch) => batch.id)).toContain(accepted.json.id);
    }
    const [orphans] = await sql(
      database.db,
      'select count(*)::int as n from batch_items i where not exists (select from batches b where b.id = i.batch_id)',
    );
    expect(orphans).toEqual({ n: 0 });
    expect(whole + absent).toBe(12);
    const server = await scene.start({ dsn: database.dsn, upstream });
    for (const { id } of await sql<{ id: string }>(database.db, 'select id from batches')) {
      await finished(server, id);
      await expectRecordedOnce(server, database.db, id, 4000);
    }
  });
});
