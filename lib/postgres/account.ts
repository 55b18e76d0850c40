import { readFile } from 'node:fs/promises';

/** The unprivileged user that Postgres runs as. */
export interface Account {
  uid: number;
  gid: number;
}

// Postgres refuses to run as root, and initdb needs a user in /etc/passwd. This service never creates one: it must not
// change the accounts of a machine.
const CANDIDATES = ['postgres', 'nobody'];

/**
 * Returns the account that must start Postgres, or null if the current user can run it. For root that is `postgres` if
 * it exists, else `nobody`. Throws if neither exists.
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
