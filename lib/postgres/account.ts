import { readFile } from 'node:fs/promises';

/** The unprivileged user that Postgres runs as. */
export interface Account {
  uid: number;
  gid: number;
}

// Postgres refuses to run as root, and initdb wants a user that /etc/passwd knows. No user is ever created: changing the
// accounts of a machine is not our business.
const CANDIDATES = ['postgres', 'nobody'];

/**
 * The account that Postgres must be started as, or null when the current user can run it. As root: `postgres` when it
 * exists, else `nobody`. Throws when there is neither.
 */
export async function postgresAccount(): Promise<Account | null> {
  if (process.getuid?.() !== 0) return null;
  const lines = (await readFile('/etc/passwd', 'utf8')).split('\n').map((line) => line.split(':'));
  for (const name of CANDIDATES) {
    const entry = lines.find((fields) => fields[0] === name);
    if (entry) return { uid: Number(entry[2]), gid: Number(entry[3]) };
  }
  throw new Error('Postgres cannot run as root, and there is no user "postgres" or "nobody" to run it as');
}
