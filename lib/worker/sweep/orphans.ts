import { referencedObjects } from '../../batch/object-references.sql.ts';
import type { Db } from '../../db/database.ts';
import { PAYLOAD_KINDS, type PayloadKind, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';

/**
 * Objects are left alone for a day: a writer never commits one older than an hour ("Objects and orphans" in
 * docs/spec/engine-guarantees.md).
 */
const MIN_AGE_MS = 24 * 3_600_000;
const PAGE = 500;

/** Deletes payload objects older than 24 h that nothing refers to at that moment; returns how many. */
export async function deleteOrphans(db: Db, store: PayloadStore, nowMs: number): Promise<number> {
  const before = nowMs - MIN_AGE_MS;
  let deleted = 0;
  for (const kind of PAYLOAD_KINDS) {
    let page: string[] = [];
    for await (const { id } of store.list(kind, before)) {
      page.push(id);
      if (page.length < PAGE) continue;
      deleted += await deleteUnreferenced(db, store, kind, page);
      page = [];
    }
    deleted += await deleteUnreferenced(db, store, kind, page);
    await store.removeStale(kind, before);
  }
  return deleted;
}

async function deleteUnreferenced(db: Db, store: PayloadStore, kind: PayloadKind, ids: string[]): Promise<number> {
  if (ids.length === 0) return 0;
  const used = await referencedObjects(db, kind, ids);
  const orphans = ids.filter((id) => !used.has(id)).map((id): PayloadRef => ({ kind, id }));
  await store.delete(orphans);
  return orphans.length;
}
