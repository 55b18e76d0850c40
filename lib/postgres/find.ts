import { realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { ROLE } from './cluster.ts';
import { postgresPassword } from './generated-secrets.ts';
import { readPidFile, runningPostmaster, SOCKET_PORT, type TcpPort } from './postmaster.ts';

/** Returns an embedded server's DSN without a database: its socket in the cluster directory, or a port of 127.0.0.1. */
export function serverDsn(cluster: string, port: TcpPort, password: string): string {
  const address = port === null ? `${encodeURIComponent(cluster)}:${SOCKET_PORT}` : `127.0.0.1:${port}`;
  return `postgres://${ROLE}:${password}@${address}`;
}

/**
 * Returns the DSN of the service's database in the embedded Postgres of a server that runs in `dataDir`; null if none
 * runs there. For commands beside the server: it starts nothing, and does not become the owner.
 */
export async function findEmbedded(dataDir: string): Promise<string | null> {
  const directory = await realpath(dataDir).catch(() => null);
  if (directory === null) return null;
  const cluster = join(directory, 'postgres');
  if ((await runningPostmaster(cluster)) === null) return null;
  const port = (await readPidFile(cluster))?.port ?? null;
  return `${serverDsn(cluster, port, (await postgresPassword(directory)).value)}/${ROLE}`;
}
