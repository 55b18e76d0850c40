import type { Db } from '../db/database.ts';
import { deleteObjects, insertObjects, markApplied, updateObjects } from './catalog.sql.ts';
import { bumpCatalogVersion } from './catalog-state.sql.ts';
import type { ChangeSet, Write } from './change-set.ts';
import { insertRelayKeys, replaceRelayKeys, revokeRelayKey } from './relay-keys.sql.ts';
import { deleteHostKeySecrets, putHostKeySecrets } from './secrets/host-key-secrets.sql.ts';
import { requireMasterKey } from './secrets/master-key.ts';

/**
 * Writes a plan without faults, in a transaction that holds the catalogue lock since the state was read. Returns the
 * new version, or null when nothing changed (then no replica is notified). Throws 409 `conflict` when it would store
 * values under another master key than that of this database.
 */
export async function writeChangeSet(tx: Db, plan: ChangeSet): Promise<number | null> {
  if (plan.faults.length > 0) throw new Error('a plan with faults must not be written');
  const { inserts, updates, deletes, marks } = plan;
  // First: a new object may take the value of a key that goes.
  if (deletes.length > 0)
    await deleteObjects(
      tx,
      deletes.map((object) => object.id),
    );
  if (inserts.length > 0) await insertObjects(tx, inserts);
  const documents = updates.filter((write) => write.documentChanged || write.applied);
  if (documents.length > 0) await updateObjects(tx, documents);
  if (marks.length > 0) await markApplied(tx, marks);

  // Replaced before inserted: a new key may take the value that another one gives up.
  const replaced = updates.flatMap(digestOf);
  if (replaced.length > 0) await replaceRelayKeys(tx, replaced);
  const made = inserts.flatMap(digestOf);
  if (made.length > 0) await insertRelayKeys(tx, made);
  for (const write of updates) if (write.revoke) await revokeRelayKey(tx, write.id);

  const writes = [...inserts, ...updates];
  const sealed = writes.flatMap(({ id, secret }) =>
    secret ? [{ id, key_id: secret.keyId, nonce: secret.nonce, ciphertext: secret.ciphertext }] : [],
  );
  if (sealed.length > 0) {
    await requireMasterKey(tx, sealed[0]!.key_id);
    await putHostKeySecrets(tx, sealed);
  }
  const forgotten = writes.filter((write) => write.secret === null).map((write) => write.id);
  if (forgotten.length > 0) await deleteHostKeySecrets(tx, forgotten);

  const changed = writes.length + deletes.length > 0;
  return changed ? bumpCatalogVersion(tx) : null;
}

function digestOf(write: Write) {
  return write.digest ? [{ id: write.id, ...write.digest, revoked: write.revoke }] : [];
}
