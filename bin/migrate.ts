import { loadConfig } from '../lib/app/config.ts';
import { ConfigError, reasonOf } from '../lib/base/errors.ts';
import { createLog } from '../lib/base/log.ts';
import { migrate } from '../lib/db/migrate.ts';

// The deploy step: migrates the database that RELAY_PG_DIRECT_DSN or RELAY_PG_DSN names, and ends.

const log = createLog(process.env.RELAY_LOG_LEVEL || 'info');
try {
  const config = loadConfig(process.env);
  if (config.pgDirectDsn === null) {
    throw new ConfigError('RELAY_PG_DSN is missing: an embedded Postgres is migrated by the server that owns it');
  }
  const applied = await migrate(config.pgDirectDsn, log);
  log.info({ applied }, applied === 0 ? 'the schema is current' : 'the schema was migrated');
} catch (error) {
  log.fatal(reasonOf(error));
  process.exitCode = 1;
}
