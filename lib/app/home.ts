import { uuidv7 } from '../base/clock.ts';
import { ConfigError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { applyCatalog } from '../catalog/apply.ts';
import { CatalogError, formatFault } from '../catalog/documents/document.ts';
import { readCatalog } from '../catalog/read.ts';
import type { SecretBox } from '../catalog/secrets/secret-box.ts';
import type { Database } from '../db/database.ts';
import type { Embedded } from '../postgres/embedded.ts';
import type { Config } from './config.ts';

/** Where the container form keeps its state, and the secrets it works with. */
export interface Home {
  dsn: string;
  directDsn: string;
  instance: string;
  masterKey: string | null;
  adminToken: string | null;
  adminTokenFile: string | null;
  embedded: Embedded | null;
}

/** Where state lives: the given Postgres, or an embedded one in the data dir, with generated secrets. */
export async function settle(config: Config, log: Log): Promise<Home> {
  const secrets = await import('../postgres/generated-secrets.ts');
  if (config.pgDsn !== null) {
    return {
      dsn: config.pgDsn,
      directDsn: config.pgDirectDsn ?? config.pgDsn,
      instance: config.instanceId ?? (await storedInstanceId(config.dataDir, log)),
      masterKey: config.masterKey,
      adminToken: config.adminToken,
      adminTokenFile: null,
      embedded: null,
    };
  }
  const { startEmbedded } = await import('../postgres/embedded.ts');
  const embedded = await startEmbedded({ dataDir: config.dataDir, log });
  const admin = config.adminToken === null ? await secrets.adminToken(config.dataDir) : null;
  return {
    dsn: embedded.dsn,
    directDsn: embedded.dsn,
    instance: config.instanceId ?? (await secrets.instanceId(config.dataDir)),
    masterKey: config.masterKey ?? (await secrets.masterKey(config.dataDir)).value,
    adminToken: config.adminToken ?? admin!.value,
    adminTokenFile: admin?.path ?? null,
    embedded,
  };
}

/** A container may have no writable data dir: its instance then has a name for the life of the process. */
async function storedInstanceId(dataDir: string, log: Log): Promise<string> {
  const { instanceId, prepareDataDir } = await import('../postgres/generated-secrets.ts');
  try {
    await prepareDataDir(dataDir);
    return await instanceId(dataDir);
  } catch (error) {
    log.warn({ err: reasonOf(error) }, 'no stable instance id: set RELAY_INSTANCE_ID or a writable RELAY_DATA_DIR');
    return uuidv7();
  }
}

/** Applies RELAY_CATALOG; throws ConfigError with every fault. */
export async function applyAtStart(
  db: Database,
  path: string,
  env: Readonly<Record<string, string | undefined>>,
  secretBox: SecretBox | null,
  log: Log,
): Promise<void> {
  try {
    const result = await applyCatalog(db, await readCatalog([path]), { env, secretBox });
    for (const warning of result.warnings) log.warn({ fault: formatFault(warning) }, 'catalogue');
    log.info({ created: result.created, updated: result.updated, unchanged: result.unchanged }, 'catalogue applied');
  } catch (error) {
    if (!(error instanceof CatalogError)) throw error;
    const faults = error.faults.map(formatFault).join('\n  ');
    throw new ConfigError(`RELAY_CATALOG is not valid, nothing was applied:\n  ${faults}`, { cause: error });
  }
}
