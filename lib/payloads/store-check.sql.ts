import type { Db } from '../db/database.ts';

/** Id of the payload store that this database's payloads live in; null before the first start. */
export async function readStoreId(db: Db): Promise<string | null> {
  const result = await db.query<{ store_id: string }>({
    name: 'read_store_id',
    text: 'select store_id from payload_store',
    values: [],
  });
  return result.rows[0]?.store_id ?? null;
}

/** Records the store's id if none is; a second one waits for the first's transaction. True when this one did it. */
export async function insertStoreId(db: Db, id: string): Promise<boolean> {
  const result = await db.query({
    name: 'insert_store_id',
    text: 'insert into payload_store (store_id) values ($1::uuid) on conflict (only_row) do nothing',
    values: [id],
  });
  return result.rowCount === 1;
}
