import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { isPostmasterOf, readPidFile, runningPostmaster } from '../../lib/postgres/postmaster.ts';
import { ROOT } from '../support/root.ts';
import { FASTER_TIME } from '../support/server.ts';

const PROGRAM = join(ROOT, 'test/support/owner-process.ts');

interface Line {
  dsn?: string;
  failed?: string;
  msg?: string;
}

interface Owner {
  child: ChildProcess;
  /** The next line of its output that `wanted` accepts; rejects when the process ends first. */
  line(wanted: (line: Line) => boolean): Promise<Line>;
}

let seed: string;
let dataDir: string;
let owners: ChildProcess[];

const makeDir = async () => realpath(await mkdtemp(join(tmpdir(), 'relay-owner-')));

// The cluster is made once and copied: most of a first start is initdb.
beforeAll(async () => {
  owners = [];
  seed = dataDir = await makeDir();
  await kill((await start()).child, 'SIGTERM');
});
afterAll(() => rm(seed, { recursive: true, force: true }));

beforeEach(async () => {
  dataDir = await makeDir();
  await promisify(execFile)('cp', ['-a', `${seed}/.`, dataDir]);
  owners = [];
});

afterEach(async () => {
  for (const child of owners) if (child.exitCode === null && child.signalCode === null) await kill(child);
  const pid = await postmasterPid();
  if (pid !== null) {
    process.kill(pid, 'SIGKILL');
    await gone(pid);
  }
  await rm(dataDir, { recursive: true, force: true, maxRetries: 10 });
});

function launch(speed?: number): Owner {
  const child = spawn(process.execPath, [...(speed ? ['--import', FASTER_TIME] : []), PROGRAM, dataDir], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, RELAY_TEST_SPEED: String(speed) },
  });
  owners.push(child);
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]();
  return {
    child,
    async line(wanted) {
      for (;;) {
        const next = await lines.next();
        if (next.done) throw new Error('the owner ended');
        const line = JSON.parse(next.value) as Line;
        if (wanted(line)) return line;
      }
    },
  };
}

async function start(speed?: number): Promise<Owner & { dsn: string }> {
  const owner = launch(speed);
  const first = await owner.line((line) => line.dsn !== undefined || line.failed !== undefined);
  if (first.dsn === undefined) throw new Error(first.failed);
  return { ...owner, dsn: first.dsn };
}

async function kill(child: ChildProcess, signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
  const exited = once(child, 'exit');
  child.kill(signal);
  await exited;
}

async function query<Row extends pg.QueryResultRow>(dsn: string, text: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: dsn });
  await client.connect();
  try {
    return (await client.query<Row>(text)).rows;
  } finally {
    await client.end();
  }
}

const startTime = (dsn: string) => query(dsn, 'select pg_postmaster_start_time()::text as at');

const postmasterPid = () => runningPostmaster(join(dataDir, 'postgres'));

async function gone(pid: number): Promise<void> {
  await expect.poll(() => isPostmasterOf(pid, join(dataDir, 'postgres')), { timeout: 20_000 }).toBe(false);
}

// A start takes 100 ms on an idle machine and seconds on a busy one; a hung Postgres is given up only after 10 s.
describe('embedded Postgres', { timeout: 120_000 }, () => {
  test('keeps its data over a stop, leaves no process behind and shows nothing to other users', async () => {
    const first = await start();
    await query(first.dsn, 'create table kept as select 7 as n');
    const pid = await postmasterPid();
    await kill(first.child, 'SIGTERM');
    expect(first.child.exitCode).toBe(0);
    expect(await isPostmasterOf(pid!, join(dataDir, 'postgres'))).toBe(false);

    const second = await start();
    expect(await query(second.dsn, 'select n from kept')).toEqual([{ n: 7 }]);
    expect((await stat(dataDir)).mode & 0o777).toBe(0o700);
    for (const name of await readdir(dataDir)) {
      expect([name, (await stat(join(dataDir, name))).mode & 0o077]).toEqual([name, 0]);
    }
  });

  test('refuses a second owner by the pid of the first, whose database stays up', async () => {
    const first = await start();
    const second = launch();
    const line = await second.line((found) => found.failed !== undefined);
    expect(line.failed).toBe(`data dir in use by pid ${first.child.pid}`);
    expect(await query(first.dsn, 'select 1 as up')).toEqual([{ up: 1 }]);
  });

  test('brings Postgres back under the same address when it is killed', async () => {
    const owner = await start();
    await query(owner.dsn, 'create table kept as select 7 as n');
    const before = await startTime(owner.dsn);
    process.kill((await postmasterPid())!, 'SIGKILL');
    await owner.line((line) => line.msg === 'the embedded Postgres is available again');
    expect(await query(owner.dsn, 'select n from kept')).toEqual([{ n: 7 }]);
    expect(await startTime(owner.dsn)).not.toEqual(before);
    expect(owner.child.exitCode).toBe(null);
  });

  test('owns the data dir again after its connection was cut', async () => {
    const owner = await start();
    const cut = `select pg_terminate_backend(pid) from pg_stat_activity where application_name like '% owner pid %'`;
    await query(owner.dsn, cut);
    await owner.line((line) => line.msg === 'the embedded Postgres is available again');
    const line = await launch().line((found) => found.failed !== undefined);
    expect(line.failed).toBe(`data dir in use by pid ${owner.child.pid}`);
  });

  test('adopts the Postgres that a killed owner left running', async () => {
    const first = await start();
    const before = await startTime(first.dsn);
    await kill(first.child);
    const second = await start();
    expect(await startTime(second.dsn)).toEqual(before);
    expect(second.dsn).toBe(first.dsn);
    await kill(second.child, 'SIGTERM');
    expect(await postmasterPid()).toBe(null);
  });

  test('recovers what was committed when owner and Postgres were both killed', async () => {
    const first = await start();
    await query(first.dsn, 'create table kept as select 7 as n');
    const pid = (await postmasterPid())!;
    process.kill(first.child.pid!, 'SIGKILL');
    process.kill(pid, 'SIGKILL');
    const second = await start();
    expect(await query(second.dsn, 'select n from kept')).toEqual([{ n: 7 }]);
  });

  test('starts although the pid of its predecessor belongs to another process now', async () => {
    const first = await start();
    await kill(first.child, 'SIGTERM');
    const file = join(dataDir, 'postgres', 'postmaster.pid');
    await writeFile(file, `${process.pid}\n${dataDir}/postgres\n1\n5432\n.\n\n`);
    const second = await start();
    expect(await query(second.dsn, 'select 1 as up')).toEqual([{ up: 1 }]);
    expect((await readPidFile(join(dataDir, 'postgres')))?.pid).not.toBe(process.pid);
  });

  test('replaces a Postgres of its data dir that does not answer', async () => {
    const first = await start();
    const hung = (await postmasterPid())!;
    await kill(first.child);
    process.kill(hung, 'SIGSTOP');
    const second = await start(5);
    expect(await query(second.dsn, 'select 1 as up')).toEqual([{ up: 1 }]);
    expect(await isPostmasterOf(hung, join(dataDir, 'postgres'))).toBe(false);
  });

  test('is out of reach of a Ctrl-C in the terminal', async () => {
    const owner = await start();
    const group = async (pid: number) => (await readFile(`/proc/${pid}/stat`, 'utf8')).split(') ')[1]!.split(' ')[2];
    const pid = (await postmasterPid())!;
    expect(await group(pid)).toBe(String(pid));
    expect(await group(owner.child.pid!)).not.toBe(String(pid));
  });

  test('listens on 127.0.0.1 with a password when the path of its socket would be too long', async () => {
    const home = dataDir;
    dataDir = join(home, 'd'.repeat(60), 'e'.repeat(60));
    await mkdir(dataDir, { recursive: true });
    try {
      const owner = await start();
      const url = new URL(owner.dsn);
      expect(url.hostname).toBe('127.0.0.1');
      expect(await query(owner.dsn, 'select 1 as up')).toEqual([{ up: 1 }]);
      url.password = 'wrong';
      await expect(query(url.href, 'select 1')).rejects.toThrow('password authentication failed');
      await kill(owner.child, 'SIGTERM');
    } finally {
      dataDir = home;
    }
  });

  test('says what is wrong with a data dir of another Postgres version', async () => {
    await writeFile(join(dataDir, 'postgres', 'PG_VERSION'), '12\n');
    const line = await launch().line((found) => found.failed !== undefined);
    expect(line.failed).toContain('holds data of Postgres 12, this release has 18');
  });
});
