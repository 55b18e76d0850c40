import { Command } from 'commander';
import { loadConfig } from '../../lib/app/config.ts';
import { ConfigError } from '../../lib/base/errors.ts';
import { createLog } from '../../lib/base/log.ts';
import { migrate } from '../../lib/db/migrate.ts';

/** `relay-batch migrate`: the deploy step, before the first replica of a release starts. */
export function migrateCommand(env: NodeJS.ProcessEnv): Command {
  return new Command('migrate')
    .description('apply missing migrations to RELAY_PG_DIRECT_DSN or RELAY_PG_DSN')
    .action(async () => {
      const config = loadConfig(env);
      if (config.pgDirectDsn === null) {
        throw new ConfigError('RELAY_PG_DSN is missing: an embedded Postgres is migrated by the server that owns it');
      }
      const applied = await migrate(config.pgDirectDsn, createLog('warn'));
      process.stdout.write(applied === 0 ? 'The schema is current.\n' : `${applied} migrations applied.\n`);
    });
}
