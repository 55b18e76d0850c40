import { ApiError, ConfigError } from '../../base/errors.ts';
import { lockForTransaction } from '../../db/advisory-locks.sql.ts';
import type { Db } from '../../db/database.ts';
import { countSealed, type SealedCount } from './master-key.sql.ts';

// A database is sealed with one master key. Every sealed row carries its fingerprint, so nothing else has to be kept in
// step with the rows. A release without this check writes rows that this release understands.

/**
 * Lets a transaction continue that seals with the master key `keyId`. Throws 409 `conflict` when anything stored was sealed
 * with another one: neither key would start the service then. Call it before the write, in its transaction; it holds the
 * lock of the master key, so that no other write and no `rekey` comes between.
 */
export async function requireMasterKey(tx: Db, keyId: string): Promise<void> {
  await lockForTransaction(tx, 'masterKey');
  const fault = foreignKeyFault(await countSealed(tx), keyId);
  if (fault !== null) throw new ApiError('conflict', fault);
}

/**
 * The same at a start and for `rekey`: throws ConfigError, also when the master key is missing (null) and something is
 * sealed.
 */
export async function checkFingerprint(tx: Db, keyId: string | null): Promise<void> {
  await lockForTransaction(tx, 'masterKey');
  const fault = foreignKeyFault(await countSealed(tx), keyId);
  if (fault !== null) throw new ConfigError(fault);
}

/** The reason why the master key `keyId` cannot be used on a database where these rows are sealed; null when it can. */
function foreignKeyFault(sealed: readonly SealedCount[], keyId: string | null): string | null {
  if (sealed.every((row) => row.key_id === keyId)) return null;
  const ours = keyId === null ? 'RELAY_MASTER_KEY is missing' : `RELAY_MASTER_KEY has the fingerprint ${keyId}`;
  return `${ours}, this database was written with ${sealed.length === 1 ? sealed[0]!.key_id : describe(sealed)}`;
}

function describe(sealed: readonly SealedCount[]): string {
  return sealed
    .map((row) => `${row.key_id} (${row.host_keys} host keys, ${row.signing_keys} signing keys)`)
    .join(' and ');
}
