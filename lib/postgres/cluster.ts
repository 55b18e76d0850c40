import { spawn } from 'node:child_process';
import { chmod, chown, mkdtemp, open, readFile, rename, rm, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ConfigError } from '../base/errors.ts';
import type { Account } from './account.ts';
import type { Binaries } from './binaries.ts';
import { clusterArgument } from './postmaster.ts';

/** The one role of the embedded server, and the name of its database. */
export const ROLE = 'relay';

/** Postgres 18: the major version of the pinned package. Data of another one must be dumped and loaded. */
const MAJOR = '18';

/**
 * Makes the database cluster in `<dataDir>/postgres` unless it exists, and returns its path. It is made beside and
 * renamed when it is complete, so that a killed first start leaves nothing half done. Throws ConfigError for data of
 * another Postgres version.
 */
export async function ensureCluster(
  dataDir: string,
  binaries: Binaries,
  account: Account | null,
  password: string,
): Promise<string> {
  const cluster = join(dataDir, 'postgres');
  if (await isCluster(cluster)) return cluster;
  const fresh = await mkdtemp(join(dataDir, 'postgres.new-'));
  try {
    await chmod(fresh, 0o700);
    if (account) await chown(fresh, account.uid, account.gid);
    await initialise(fresh, binaries, account, password);
    await rename(fresh, cluster);
  } catch (error) {
    await rm(fresh, { recursive: true, force: true });
    if (!(await isCluster(cluster))) throw error; // else another starter was faster
  }
  return cluster;
}

async function isCluster(cluster: string): Promise<boolean> {
  const version = await readFile(join(cluster, 'PG_VERSION'), 'utf8').catch(() => null);
  if (version !== null && version.trim() !== MAJOR) {
    throw new ConfigError(
      `${cluster} holds data of Postgres ${version.trim()}, this release has ${MAJOR}: dump it with that version and load it again`,
    );
  }
  return version !== null;
}

async function initialise(
  cluster: string,
  binaries: Binaries,
  account: Account | null,
  password: string,
): Promise<void> {
  // initdb may not be able to reach any directory of ours, so it receives the password as a file without a name.
  const path = `${cluster}.password`;
  await writeFile(path, `${password}\n`, { mode: 0o600, flag: 'wx' });
  if (account) await chown(path, account.uid, account.gid);
  const file = await open(path, 'r');
  await unlink(path);
  try {
    await run(binaries.initdb, account, cluster, file.fd);
  } finally {
    await file.close();
  }
}

function run(program: string, account: Account | null, cluster: string, stdin: number): Promise<void> {
  const args = [
    `--pgdata=${clusterArgument(cluster)}`,
    `--username=${ROLE}`,
    '--pwfile=/dev/stdin',
    // A local user who can open the port must not get in without the password either.
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    // Byte order, the same on every machine: indexes survive a new libc.
    '--locale=C',
    '--no-instructions',
  ];
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      ...account,
      cwd: cluster,
      detached: true,
      stdio: [stdin, 'ignore', 'pipe'],
      env: { LC_ALL: 'C', PATH: process.env.PATH ?? '' },
    });
    let output = '';
    child.stderr?.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    child.once('error', reject);
    child.once('close', (code, signal) => {
      if (code === 0) resolve();
      else reject(new Error(`initdb ended with ${code ?? signal}: ${output.trim()}`));
    });
  });
}
