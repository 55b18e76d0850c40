import { randomBytes } from 'node:crypto';
import { chmod, link, mkdir, open, readFile, rename, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { uuidv7 } from '../base/clock.ts';
import { ConfigError, reasonOf } from '../base/errors.ts';

/**
 * Makes the data dir with mode 0700, and takes the rights of others away from one that exists. Throws ConfigError when
 * it cannot be used.
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

/** Bearer of the control API: `admin-token`, 32 random bytes in base64url. */
export function adminToken(dataDir: string): Promise<GeneratedSecret> {
  return once(dataDir, 'admin-token', () => randomBytes(32).toString('base64url'));
}

/** Key of stored secrets: `master-key`, 32 random bytes in base64, as RELAY_MASTER_KEY wants it. */
export function masterKey(dataDir: string): Promise<GeneratedSecret> {
  return once(dataDir, 'master-key', () => randomBytes(32).toString('base64'));
}

/** Password of the embedded Postgres: `postgres-password`. */
export function postgresPassword(dataDir: string): Promise<GeneratedSecret> {
  return once(dataDir, 'postgres-password', () => randomBytes(24).toString('base64url'));
}

/** Stable name of this replica: `instance-id`, a UUID. A server that starts again is known by it. */
export async function instanceId(dataDir: string): Promise<string> {
  return (await once(dataDir, 'instance-id', () => uuidv7())).value;
}

/**
 * The content of a file of mode 0600 that is generated when it is missing. Whole and durable before it has its name, and
 * the name is taken only once: of two starters both read the same value, and a crash leaves no empty secret.
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

/** Puts another master key in place of the generated one; a crash leaves the one or the other, whole. */
export async function replaceMasterKey(dataDir: string, value: string): Promise<void> {
  await rename(await writeFresh(dataDir, 'master-key', value), join(dataDir, 'master-key'));
}

/** Writes a secret durably under a name that nobody looks at, and gives its path. */
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
