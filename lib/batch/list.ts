import type { Db } from '../db/database.ts';
import { type ListedBatch, listBatches } from './batches.sql.ts';

export interface ListDeps {
  db: Db;
}

/** One line of the native list. */
export interface ListedDocument extends Omit<ListedBatch, 'created_at' | 'completed_at'> {
  created_at: string;
  completed_at: string | null;
}

/**
 * A page of an owner's batches on one surface, newest first. `after` is the last id of the page before (it need not exist
 * any more); `last_id` is null on an empty page.
 */
export async function listOwnBatches(
  deps: ListDeps,
  page: { owner: string; surface: string; after: string | null; limit: number },
): Promise<{ data: ListedDocument[]; has_more: boolean; last_id: string | null }> {
  const rows = await listBatches(deps.db, { ...page, limit: page.limit + 1 });
  const data = rows.slice(0, page.limit).map((row) => ({
    id: row.id,
    status: row.status,
    shape: row.shape,
    total_items: row.total_items,
    created_at: row.created_at.toISOString(),
    completed_at: row.completed_at?.toISOString() ?? null,
    counts: row.counts,
  }));
  return { data, has_more: rows.length > page.limit, last_id: data.at(-1)?.id ?? null };
}
