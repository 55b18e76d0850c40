import { ConfigError } from '../base/errors.ts';
import type { Database, Db } from '../db/database.ts';
import { lockCatalog } from './catalog-state.sql.ts';
import { listHostKeySecrets, putHostKeySecrets, type SecretRow } from './host-key-secrets.sql.ts';
import type { SecretBox } from './secret-box.ts';

/**
 * Throws ConfigError when stored host keys need another master key than `box`, or when there is none: at start, because
 * a key that cannot be opened would only be missed by the first item.
 */
export async function checkMasterKey(db: Db, box: SecretBox | null): Promise<void> {
  for (const row of await listHostKeySecrets(db)) {
    if (box === null)
      throw new ConfigError(`RELAY_MASTER_KEY is missing: stored host keys need master key ${row.key_id}`);
    if (row.key_id !== box.keyId) {
      throw new ConfigError(`RELAY_MASTER_KEY is the wrong key (${box.keyId}): stored host keys need ${row.key_id}`);
    }
    openRow(row, box);
  }
}

/**
 * Seals every stored secret with a new master key, in one transaction. `alsoReseal` does the same for secrets that are
 * kept elsewhere (signing keys of tokens). Values do not change, so the catalogue version does not either: running
 * replicas keep what they opened, and must be restarted with the new key. Gives the number of host keys.
 */
export async function rekeySecrets(
  db: Database,
  from: SecretBox,
  to: SecretBox,
  alsoReseal: (tx: Db, from: SecretBox, to: SecretBox) => Promise<void>,
): Promise<number> {
  return db.transaction(async (tx) => {
    await lockCatalog(tx);
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
