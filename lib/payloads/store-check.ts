import { randomUUID } from 'node:crypto';
import type { Database } from '../db/database.ts';
import type { PayloadStore } from './payload-store.ts';
import { insertStoreId, readStoreId } from './store-check.sql.ts';

const NOT_SHARED = 'payload directory is not shared';

/**
 * Makes the check that the payload store is the one that holds this database's payloads: the marker in it must be the
 * id that Postgres has. The first start makes both, marker first, so a crash between the two leaves nothing to repair
 * by hand. The check returns null if all is well, else the reason. Once the id is known, it queries only the store.
 */
export function createStoreCheck(db: Database, store: PayloadStore): () => Promise<string | null> {
  let known: string | null = null;
  return async () => {
    const marker = await store.readMarker();
    known ??= await readStoreId(db);
    if (known !== null) return marker === known ? null : NOT_SHARED;
    return db.transaction(async (tx) => {
      const id = marker ?? randomUUID();
      if (!(await insertStoreId(tx, id))) return (await readStoreId(tx)) === marker ? null : NOT_SHARED;
      if (marker === null) await store.writeMarker(id);
      return null;
    });
  };
}
