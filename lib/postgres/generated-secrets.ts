import { randomBytes } from 'node:crypto';
import { chmod, link, mkdir, open, readFile, rename, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { uuidv7 } from '../base/clock.ts';
import { ConfigError, reasonOf } from '../base/errors.ts';

/**
 * Makes the data dir with mode 0700. Removes the rights of others from one that exists. Throws ConfigError if it cannot
 * be used.
 */
export async function prepareDataDir(dataDir: string): Promise<void> {
  try {
    await mkdir(dataDir, { recursive: true, mode: 0o700 });
    await chmod(dataDir, 0o700);
  } catch (error) {
    throw new ConfigError(`RELAY_DATA_DIR ${dataDir} cannot be used: ${reasonOf(error)}`, { cause: error });
  }
}

/** A secret and the file that holds it. Show the file, never the value. */
export interface GeneratedSecret {
  value: string;
  path: string;
}

/** Returns the bearer token of the control API: `admin-token`, 32 random bytes in base64url. */
export function adminToken(dataDir: string): Promise<GeneratedSecret> {
  return once(dataDir, 'admin-token', () => randomBytes(32).toString('base64url'));
}

/** Returns the key of stored secrets: `master-key`, 32 random bytes in base64, as RELAY_MASTER_KEY expects it. */
export function masterKey(dataDir: string): Promise<GeneratedSecret> {
  return once(dataDir, 'master-key', () => randomBytes(32).toString('base64'));
}

/** Returns the password of the embedded Postgres: `postgres-password`. */
export function postgresPassword(dataDir: string): Promise<GeneratedSecret> {
  return once(dataDir, 'postgres-password', () => randomBytes(24).toString('base64url'));
}

/** Returns the stable name of this replica: `instance-id`, a UUID. It identifies a server that starts again. */
export async function instanceId(dataDir: string): Promise<string> {
  return (await once(dataDir, 'instance-id', () => uuidv7())).value;
}

/**
 * Returns the content of a file of mode 0600, and generates a missing one. The file is whole and durable before it has
 * its name, and the name is taken once: two starters read the same value, and a crash leaves no empty secret.
 */
async function once(dataDir: string, name: string, generate: () => string): Promise<GeneratedSecret> {
  const path = join(dataDir, name);
  const present = await readSecret(path);
  if (present !== null) return { value: present, path };
  const fresh = await writeFresh(dataDir, name, generate());
  await link(fresh, path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  await unlink(fresh);
  return { value: (await readSecret(path))!, path };
}

/** Replaces the generated master key. A crash leaves the old one or the new one, whole. */
export async function replaceMasterKey(dataDir: string, value: string): Promise<void> {
  await rename(await writeFresh(dataDir, 'master-key', value), join(dataDir, 'master-key'));
}

/** Writes a secret durably under a name that nobody looks at, and returns its path. */
async function writeFresh(dataDir: string, name: string, value: string): Promise<string> {
  const fresh = join(dataDir, `.${name}-${randomBytes(6).toString('hex')}`);
  const file = await open(fresh, 'wx', 0o600);
  try {
    await file.writeFile(`${value}\n`);
    await file.sync();
  } finally {
    await file.close();
  }
  return fresh;
}

async function readSecret(path: string): Promise<string | null> {
  let text: string;
  try {
    text = (await readFile(path, 'utf8')).trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw new ConfigError(`${path} cannot be read: ${reasonOf(error)}`, { cause: error });
  }
  if (text === '') throw new ConfigError(`${path} is empty: delete it to have a new one generated`);
  return text;
}
