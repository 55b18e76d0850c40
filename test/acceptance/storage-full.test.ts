import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, readdir, rename, rm, rmdir, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { call, completed, eventually, expectRecordedOnce, finished, itemsOf, submit } from './support/calls.ts';
import { openScene } from './support/scene.ts';

const MIB = 1024 * 1024;
const mayMount = await canMount();

describe.concurrent('a payload directory that takes no more', { timeout: 120_000 }, () => {
  test.skipIf(!mayMount)(
    'answers 503, keeps results readable and resumes when there is room',
    async ({ onTestFinished }) => {
      const scene = await openScene(onTestFinished);
      const { dsn, db } = await scene.database();
      const upstream = await scene.countingUpstream({ delayMs: 20 });
      const disk = join(scene.dir, 'disk');
      await mkdir(disk);
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', disk]);
      scene.defer(async () => void execFileSync('umount', ['-l', disk]));
      const server = await scene.start({ dsn, upstream, payloadDir: join(disk, 'payloads') });
      const early = await submit(server, itemsOf(50, 'early'));
      await finished(server, early);
      const before = await call(server, 'GET', `/v1/batches/${early}/results`);
      const id = await submit(server, itemsOf(1500, 'full'));
      await completed(server, id, 100);

      await fillUp(join(disk, 'ballast'));
      const refused = await eventually(
        () => call(server, 'POST', '/v1/batches', itemsOf(3000, 'refused')),
        (answer) => answer.status !== 202,
      );
      expect([refused.status, refused.json.error.code]).toEqual([503, 'storage_full']);
      expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
      expect((await call(server, 'GET', `/v1/batches/${early}/results`)).text).toBe(before.text);
      expect((await call(server, 'GET', `/v1/batches/${id}/results`)).status).toBe(200);
      await server.logged('group commit waits for the payload store');

      await rm(join(disk, 'ballast'));
      await finished(server, id);
      await expectRecordedOnce(server, db, id, 1500);
      const { users } = await upstream.stats();
      const twice = Object.keys(users).filter((user) => users[user]! > 1 && user.startsWith('full-'));
      expect(twice).toEqual([]);
      // Nothing half written stays behind.
      expect(await server.stop()).toBe(0);
      const names = await readdir(join(disk, 'payloads'), { recursive: true });
      expect(names.filter((name) => name.includes('.tmp-'))).toEqual([]);
    },
  );

  test('refuses submits and keeps answers in memory while its directories are files', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    await linkParts(scene.dir);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(600, 'file'));
    await completed(server, id, 50);
    const back = await replaceByFile(scene.dir, 'segment');
    await server.logged('group commit waits for the payload store');
    const backInput = await replaceByFile(scene.dir, 'input');
    const refused = await call(server, 'POST', '/v1/batches', itemsOf(3, 'refused'));
    expect([refused.status, refused.json.error.code]).toEqual([503, 'storage_full']);
    await backInput();
    await back();
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 600 });
    await expectRecordedOnce(server, db, id, 600);
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
  });

  test('below its reserve refuses new bodies of every surface, and records the answers of accepted batches', async ({
    onTestFinished,
  }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const before = await scene.start({ dsn, upstream, env: { RELAY_BATCH_CONCURRENCY: '0' } });
    const id = await submit(before, itemsOf(30, 'accepted'));
    expect(await before.stop()).toBe(0);
    const server = await scene.start({ dsn, upstream, env: { RELAY_PAYLOAD_RESERVE_MIB: '1073741824' } });
    expect((await finished(server, id)).counts).toEqual({ completed: 30 });
    await expectRecordedOnce(server, db, id, 30);

    const refused = async (path: string, body: string | FormData, method = 'POST') => {
      const answer = await call(server, method, path, body);
      expect([path, answer.status]).toEqual([path, 503]);
      expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
      return answer.json;
    };
    expect((await refused('/v1/batches', itemsOf(1, 'refused'))).error.code).toBe('storage_full');
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new Blob(['{}\n']), 'a.jsonl');
    expect((await refused('/v1/files', form)).error.code).toBe('storage_full');
    const messages = { requests: [{ custom_id: 'a', params: { model: 'fast', max_tokens: 1, messages: [] } }] };
    expect(await refused('/v1/messages/batches', JSON.stringify(messages))).toMatchObject({ type: 'error' });
    const upload = await call(server, 'POST', '/v1/uploads', '{"bytes":2}');
    const { pathname, search } = new URL(upload.json.upload_url);
    expect((await refused(pathname + search, '{}', 'PUT')).error.code).toBe('storage_full');
  });

  test('waits for inputs that cannot be read, and runs their items when they can', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    await linkParts(scene.dir);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(800, 'unread'));
    await completed(server, id, 50);
    const back = await replaceByFile(scene.dir, 'input');
    await eventually(
      () =>
        db.query<{ n: number }>({
          name: 'failures',
          text: 'select max(load_failures)::int as n from batch_items',
          values: [],
        }),
      (result) => result.rows[0]!.n > 0,
    );
    await back();
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 800 });
    await expectRecordedOnce(server, db, id, 800);
  });
});

describe('two payload directories', { timeout: 60_000 }, () => {
  test('keep the second replica from being ready, and it says why', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const first = await scene.start({ dsn, upstream, home: 'a' });
    const second = await scene.start({
      dsn,
      upstream,
      home: 'b',
      payloadDir: join(scene.dir, 'elsewhere'),
      waitUntilReady: false,
    });
    const reason = 'payload directory is not shared';
    const health = () =>
      fetch(`${second.url}/healthz`).then(
        async (answer) => ({ status: answer.status, text: await answer.text() }),
        () => ({ status: 0, text: '' }),
      );
    const answer = await eventually(health, ({ text }) => text.includes(reason));
    expect(answer.status).toBe(503);
    const refused = await call(second, 'POST', '/v1/batches', itemsOf(3, 'elsewhere'));
    expect([refused.status, refused.json.error.code]).toEqual([503, 'not_ready']);
    const id = await submit(first, itemsOf(200, 'shared'));
    await finished(first, id);
    await expectRecordedOnce(first, db, id, 200);
    expect((await health()).status).toBe(503);
    expect(await second.stop()).toBe(0);
  });
});

/** Makes the payload directory's parts links, which can be replaced at one stroke under a running server. */
async function linkParts(dir: string): Promise<void> {
  for (const part of ['input', 'segment']) {
    await mkdir(join(dir, 'parts', part), { recursive: true });
    await mkdir(join(dir, 'payloads'), { recursive: true });
    await symlink(join(dir, 'parts', part), join(dir, 'payloads', part));
  }
}

/** Puts a file where the directory is; the function given undoes it. */
async function replaceByFile(dir: string, part: 'input' | 'segment'): Promise<() => Promise<void>> {
  const pointTo = async (target: string) => {
    const fresh = join(dir, `fresh-${part}`);
    await symlink(target, fresh);
    await rename(fresh, join(dir, 'payloads', part));
  };
  await pointTo('/dev/null');
  return () => pointTo(join(dir, 'parts', part));
}

/** Writes until no room is left for another byte. */
async function fillUp(path: string): Promise<void> {
  for (let size = MIB; size >= 1; size = Math.floor(size / 4)) {
    for (let failed = false; !failed; ) {
      await writeFile(path, Buffer.alloc(size), { flag: 'a' }).catch(() => {
        failed = true;
      });
    }
  }
}

async function canMount(): Promise<boolean> {
  const directory = await mkdtemp(join(tmpdir(), 'relay-mount-'));
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', directory], { stdio: 'ignore' });
    execFileSync('umount', [directory], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  } finally {
    await rmdir(directory);
  }
}
