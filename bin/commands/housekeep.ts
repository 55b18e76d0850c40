import { Command } from 'commander';
import { type Config, loadConfig } from '../../lib/app/config.ts';
import { createSharedParts, NOTHING_DUE } from '../../lib/app/shared-parts.ts';
import { uuidv7 } from '../../lib/base/clock.ts';
import { ConfigError } from '../../lib/base/errors.ts';
import { createLog, type Log } from '../../lib/base/log.ts';
import type { Database } from '../../lib/db/database.ts';
import { connected } from './connect.ts';

/** `relay-batch housekeep`: one round of what replicas do every hour, and of what their heartbeats find due. */
export function housekeepCommand(env: NodeJS.ProcessEnv): Command {
  return new Command('housekeep')
    .description('one round of the sweep: rescue, expire, compact, retention, partitions, orphaned payloads')
    .action(async () => {
      const config = loadConfig(env);
      const log = createLog('warn');
      const done = await connected(config, log, ({ db }) => sweepOnce(config, env, db, log));
      if (!done) throw new ConfigError('housekeeping is not complete: see the warnings');
      process.stdout.write('Housekeeping is done.\n');
    });
}

async function sweepOnce(config: Config, env: NodeJS.ProcessEnv, db: Database, log: Log): Promise<boolean> {
  // A sweep reads no secret.
  const shared = await createSharedParts({ config, env, log, db, masterKey: null });
  const { wakes, compactor, validator } = shared;
  // With another database's payload store, all payloads would look like orphans.
  const fault = await shared.checkStore();
  if (fault !== null) throw new ConfigError(`nothing was done: ${fault}`);

  const self = uuidv7();
  const sweeper = shared.createSweeper({
    instance: 'cli',
    selfId: () => self,
    mayRescue: () => true,
    validate: async () => void (await validator.run()),
    wake: () => void wakes.send({ kind: 'work' }, 1).catch(() => {}),
  });
  try {
    await sweeper.onHeartbeat(ALL_DUE);
    return await sweeper.housekeep();
  } finally {
    await sweeper.stop();
    await compactor.stop();
    wakes.close();
    await shared.app.payloads.close();
  }
}

/** As if a heartbeat had found everything to be due; each step looks for itself what there is. */
const ALL_DUE = { ...NOTHING_DUE, rescueDue: true, expiryDue: true, compactionDue: true, validationDue: true };
