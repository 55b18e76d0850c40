import type { Db } from '../../db/database.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { referencedObjects } from '../../worker/sweep/sweep.sql.ts';

/**
 * Deletes those objects of files deleted before that no batch refers to; a batch keeps its input, and the orphan sweep
 * takes it when the batch is gone. Must not run in the transaction that deleted the rows: it has to see what was
 * committed while that waited.
 */
export async function deleteUnused(
  db: Db,
  payloads: Pick<PayloadStore, 'delete'>,
  objects: readonly PayloadRef[],
): Promise<void> {
  for (const kind of ['input', 'output'] as const) {
    const ids = objects.filter((object) => object.kind === kind).map(({ id }) => id);
    if (ids.length === 0) continue;
    const used = await referencedObjects(db, kind, ids);
    await payloads.delete(ids.filter((id) => !used.has(id)).map((id) => ({ kind, id })));
  }
}
