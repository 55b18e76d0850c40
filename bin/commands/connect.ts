import { access } from 'node:fs/promises';
import { join } from 'node:path';
import type { Config } from '../../lib/app/config.ts';
import { ConfigError } from '../../lib/base/errors.ts';
import type { Log } from '../../lib/base/log.ts';
import { createSecretBox, parseMasterKey, type SecretBox } from '../../lib/catalog/secrets/secret-box.ts';
import { createDb, type Database } from '../../lib/db/database.ts';
import { expectedVersion, isSchemaCurrent } from '../../lib/db/migrate.ts';
import { startEmbedded } from '../../lib/postgres/embedded.ts';
import { findEmbedded } from '../../lib/postgres/find.ts';
import { masterKey } from '../../lib/postgres/generated-secrets.ts';

/** The resources that a command works with. */
export interface Connection {
  db: Database;
  /** Null without RELAY_MASTER_KEY on an external Postgres. */
  secretBox: SecretBox | null;
  /** The file that holds the master key in use; null if the key came from the environment. */
  masterKeyFile: string | null;
}

/**
 * Connects to RELAY_PG_DSN, or to the embedded Postgres of RELAY_DATA_DIR. That is the Postgres of the server that runs
 * there, else one that is started for as long as `work` runs. `alone` refuses while a server runs there (`data dir in
 * use by pid N`). Throws ConfigError if no database exists yet, or if its schema is older than this release.
 */
export async function connected<T>(
  config: Config,
  log: Log,
  work: (connection: Connection) => Promise<T>,
  alone = false,
): Promise<T> {
  const given = config.pgDirectDsn !== null;
  const found = config.pgDirectDsn ?? (alone ? null : await findEmbedded(config.dataDir));
  const embedded = found === null ? await startExisting(config.dataDir, log) : null;
  const dsn = found ?? embedded!.dsn;
  const db = createDb({ dsn, max: 2, prepared: false, applicationName: 'relay-batch cli', log });
  try {
    if (!(await isSchemaCurrent(db, await expectedVersion()))) {
      throw new ConfigError(
        'the database schema is older than this release: run relay-batch migrate, or start the server',
      );
    }
    const generated = config.masterKey === null && !given ? await masterKey(config.dataDir) : null;
    const key = config.masterKey ?? generated?.value ?? null;
    return await work({
      db,
      secretBox: key === null ? null : createSecretBox(parseMasterKey(key)),
      masterKeyFile: generated?.path ?? null,
    });
  } finally {
    await db.close();
    await embedded?.stop();
  }
}

async function startExisting(dataDir: string, log: Log): ReturnType<typeof startEmbedded> {
  // A mistyped path must not create a new, empty database that a command then works on.
  await access(join(dataDir, 'postgres')).catch((cause) => {
    throw new ConfigError(`there is no database in RELAY_DATA_DIR ${dataDir}: set it, or RELAY_PG_DSN`, { cause });
  });
  return startEmbedded({ dataDir, log });
}
