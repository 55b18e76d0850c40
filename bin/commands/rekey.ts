import { Command } from 'commander';
import { loadConfig } from '../../lib/app/config.ts';
import { resealSigningKeys } from '../../lib/auth/signing-keys.ts';
import { ConfigError } from '../../lib/base/errors.ts';
import { createLog } from '../../lib/base/log.ts';
import { rekeySecrets } from '../../lib/catalog/secrets/rekey.ts';
import { createSecretBox, parseMasterKey } from '../../lib/catalog/secrets/secret-box.ts';
import type { Db } from '../../lib/db/database.ts';
import { replaceMasterKey } from '../../lib/postgres/generated-secrets.ts';
import { listLiveInstances } from '../../lib/worker/lease/lease.sql.ts';
import { PERIODS } from '../../lib/worker/periods.ts';
import { connected } from './connect.ts';

const NEW_KEY = 'RELAY_NEW_MASTER_KEY';

/**
 * `relay-batch rekey`: seals everything stored under RELAY_NEW_MASTER_KEY instead of the key in use, in one transaction.
 * It refuses while replicas run, and with another key than that of the database. With an embedded Postgres the server must
 * be stopped; the file of the generated key is then replaced too.
 */
export function rekeyCommand(env: NodeJS.ProcessEnv): Command {
  return new Command('rekey')
    .description(`encrypt stored secrets with ${NEW_KEY}, all replicas stopped`)
    .action(async () => {
      const config = loadConfig(env);
      const text = env[NEW_KEY];
      if (!text) throw new ConfigError(`${NEW_KEY} is missing: 32 bytes in base64, as RELAY_MASTER_KEY`);
      const to = createSecretBox(parseMasterKey(text, NEW_KEY));
      await connected(
        config,
        createLog('warn'),
        async ({ db, secretBox: from, masterKeyFile }) => {
          if (from === null) throw new ConfigError('RELAY_MASTER_KEY is missing: it opens what is stored now');
          // The server of an embedded Postgres is known to be stopped: this command owns its data dir now.
          const requireStopped = config.pgDirectDsn === null ? async () => {} : requireNoReplica;
          const count = await rekeySecrets(db, from, to, { requireStopped, alsoReseal: resealSigningKeys });
          // After the commit: if this fails, the next start names the key that it needs, and the new key is at hand.
          if (masterKeyFile !== null) await replaceMasterKey(config.dataDir, text);
          process.stdout.write(
            `${count} host keys and all signing keys are encrypted with the new key ${to.keyId} now. ` +
              `${masterKeyFile === null ? 'Start the replicas with it as RELAY_MASTER_KEY.' : `${masterKeyFile} holds it.`}\n`,
          );
        },
        true,
      );
    });
}

/** A running replica keeps the old key: what it seals, and what is sealed for it, would need two keys from now on. */
async function requireNoReplica(tx: Db): Promise<void> {
  const instances = await listLiveInstances(tx, PERIODS.leaseSeconds);
  if (instances.length === 0) return;
  throw new ConfigError(
    `replicas run with the old master key: stop ${instances.join(', ')} first (one that was killed counts as running for ${PERIODS.leaseSeconds} s)`,
  );
}
