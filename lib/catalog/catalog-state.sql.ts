import { lockForTransaction } from '../db/advisory-locks.sql.ts';
import type { Db } from '../db/database.ts';
import { CHANNELS } from '../queue/postgres.sql.ts';

/** Waits for the catalogue lock and holds it to the end of the transaction: reference checks need one writer. */
export function lockCatalog(tx: Db): Promise<void> {
  return lockForTransaction(tx, 'catalog');
}

/**
 * Raises the version that every replica compares itself with, and notifies at commit, with the new version as payload.
 * To be called once, last, in each transaction that changed the catalogue, a credential or a revocation. Returns the
 * new version.
 */
export async function bumpCatalogVersion(tx: Db): Promise<number> {
  const result = await tx.query<{ version: number }>({
    name: 'catalog_bump_version',
    text: `with bumped as (update catalog_state set version = version + 1 returning version)
           select b.version from bumped b, pg_notify($1::text, b.version::text)`,
    values: [CHANNELS.catalog],
  });
  return result.rows[0]!.version;
}
