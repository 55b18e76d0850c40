import { ConfigError } from '../../base/errors.ts';
import type { Database, Db } from '../../db/database.ts';
import { lockCatalog } from '../catalog-state.sql.ts';
import { listHostKeySecrets, putHostKeySecrets, type SecretRow } from './host-key-secrets.sql.ts';
import { checkFingerprint } from './master-key.ts';
import type { SecretBox } from './secret-box.ts';

/**
 * Throws ConfigError when anything stored needs another master key than `box`, or when it is missing. At start, because
 * a key that cannot be opened would only be missed by the first item. Waits for a `rekey` under way.
 */
export async function checkMasterKey(db: Database, box: SecretBox | null): Promise<void> {
  await db.transaction(async (tx) => {
    await checkFingerprint(tx, box?.keyId ?? null);
    if (box !== null) for (const row of await listHostKeySecrets(tx)) openRow(row, box);
  });
}

/** The steps of a change of the master key that belong to layers above the catalogue. */
export interface RekeyHooks {
  /** Throws while replicas run: they would continue with the old key. Called under the lock of the master key. */
  requireStopped(tx: Db): Promise<void>;
  /** Does the same for secrets that are kept elsewhere (signing keys of tokens). */
  alsoReseal(tx: Db, from: SecretBox, to: SecretBox): Promise<void>;
}

/**
 * Seals every stored secret with a new master key, in one transaction. Values do not change, so the catalogue version
 * does not either. Returns the number of host keys. Throws ConfigError when `from` is not the key of this database.
 *
 * A replica that starts meanwhile takes its lease first and checks its key then, and that check waits for the lock that
 * is held here. Either its lease is seen here, or the new key is seen there.
 */
export async function rekeySecrets(
  db: Database,
  from: SecretBox,
  to: SecretBox,
  { requireStopped, alsoReseal }: RekeyHooks,
): Promise<number> {
  return db.transaction(async (tx) => {
    await lockCatalog(tx);
    await checkFingerprint(tx, from.keyId);
    await requireStopped(tx);
    const rows = await listHostKeySecrets(tx);
    const resealed = rows.map((row): SecretRow => {
      const { keyId, nonce, ciphertext } = to.seal(row.id, openRow(row, from));
      return { id: row.id, key_id: keyId, nonce, ciphertext };
    });
    if (resealed.length > 0) await putHostKeySecrets(tx, resealed);
    await alsoReseal(tx, from, to);
    return resealed.length;
  });
}

function openRow(row: SecretRow, box: SecretBox): Buffer {
  try {
    return box.open(row.id, { keyId: row.key_id, nonce: row.nonce, ciphertext: row.ciphertext });
  } catch (error) {
    throw new ConfigError(`RELAY_MASTER_KEY does not open the stored value of host key ${row.id}`, { cause: error });
  }
}
