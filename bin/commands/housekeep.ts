import { Command } from 'commander';
import { openPayloads, openQueue } from '../../lib/app-clients.ts';
import { createCompactor } from '../../lib/batch/compact.ts';
import { systemClock, uuidv7 } from '../../lib/clock.ts';
import { type Config, loadConfig } from '../../lib/config.ts';
import { ConfigError } from '../../lib/errors.ts';
import { purgeLimits } from '../../lib/limits/purge.ts';
import { createLog, type Log } from '../../lib/log.ts';
import type { Database } from '../../lib/store/db.ts';
import { createStoreCheck } from '../../lib/store/shared.ts';
import { purgeExpiredTokens } from '../../lib/store/tokens.sql.ts';
import { createSweeper } from '../../lib/worker/sweep.ts';
import { connected } from './connect.ts';

/** `relay-batch housekeep`: one round of what replicas do by themselves every hour, and of what their beats find due. */
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
  const store = await openPayloads(config, env);
  // Payloads of another database would all be orphans here.
  const fault = await createStoreCheck(db, store)();
  if (fault !== null) throw new ConfigError(`nothing was done: ${fault}`);

  const self = uuidv7();
  const compactor = createCompactor({ db, payloads: store, clock: systemClock, log });
  const queue = await openQueue(config, env, db);
  const sweeper = createSweeper({
    db,
    store,
    clock: systemClock,
    log,
    rescue: { db, log, instance: 'cli', onWorkerLoss: config.onWorkerLoss },
    retentionDays: config.retentionDays,
    usageRetentionDays: config.usageRetentionDays,
    selfId: () => self,
    mayRescue: () => true,
    compact: compactor.compact,
    validate: async () => {},
    wake: () => void queue.send({ kind: 'work' }, 1).catch(() => {}),
    purge: async () => {
      await purgeLimits(db);
      await purgeExpiredTokens(db);
    },
  });
  try {
    await sweeper.onBeat(ALL_DUE);
    return await sweeper.housekeep();
  } finally {
    await sweeper.stop();
    await compactor.stop();
    queue.close();
    await store.close();
  }
}

/** As if a beat had found everything to be due; each step looks for itself what there is. */
const ALL_DUE = {
  alive: true,
  catalogVersion: 0,
  nowMs: 0,
  cancelled: [],
  rescueDue: true,
  expiryDue: true,
  compactionDue: true,
  validationDue: true,
  workDue: false,
};
