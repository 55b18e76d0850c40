import type { Db } from '../db/database.ts';

/** Channel of the NOTIFY that follows every catalogue change; its payload is the new version. */
export const CATALOG_CHANNEL = 'relay_catalog';

// Any fixed number will do; it only has to differ from the other advisory locks of this database.
const CATALOG_LOCK = 7_235_601;

/** Waits for the catalogue lock and holds it to the end of the transaction: reference checks need one writer. */
export async function lockCatalog(tx: Db): Promise<void> {
  await tx.query({
    name: 'catalog_lock',
    text: 'select pg_advisory_xact_lock($1::bigint)',
    values: [CATALOG_LOCK],
  });
}

/**
 * Raises the version that every replica compares itself with, and notifies at commit. To be called once, last, in each
 * transaction that changed the catalogue, a credential or a revocation. Gives the new version.
 */
export async function bumpCatalogVersion(tx: Db): Promise<number> {
  const result = await tx.query<{ version: number }>({
    name: 'catalog_bump_version',
    text: `with bumped as (update catalog_state set version = version + 1 returning version)
           select version, pg_notify($1::text, version::text) from bumped`,
    values: [CATALOG_CHANNEL],
  });
  return result.rows[0]!.version;
}

/** The catalogue version as committed. */
export async function readCatalogVersion(db: Db): Promise<number> {
  const result = await db.query<{ version: number }>({
    name: 'catalog_read_version',
    text: 'select version from catalog_state',
    values: [],
  });
  return result.rows[0]!.version;
}
