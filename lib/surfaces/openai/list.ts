import type { Db } from '../../db/database.ts';
import { batchObject } from './batch-object.ts';
import { noSuchBatch, parseBatchId } from './find-batch.ts';
import { isOpenaiBatch, listOpenaiBatches } from './openai-batches.sql.ts';

/** OpenAI's list envelope; ids are null on an empty page. */
export interface BatchList {
  object: 'list';
  data: object[];
  first_id: string | null;
  last_id: string | null;
  has_more: boolean;
}

/**
 * A page of an owner's batches, newest first. `after` is the public id of a batch of theirs; throws `not_found` when it is
 * not, since an empty page would look like the end of the list.
 */
export async function listBatchObjects(
  db: Db,
  page: { owner: string; after: string | null; limit: number },
): Promise<BatchList> {
  const { owner, limit } = page;
  const after = page.after === null ? null : await idOf(db, owner, page.after);
  const rows = await listOpenaiBatches(db, { owner, after, limit: limit + 1 });
  const data = rows.slice(0, limit).map(batchObject);
  return {
    object: 'list',
    data,
    first_id: data.at(0)?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: rows.length > limit,
  };
}

async function idOf(db: Db, owner: string, publicId: string): Promise<string> {
  const id = parseBatchId(publicId);
  if (id === null || !(await isOpenaiBatch(db, { owner, id }))) throw noSuchBatch(publicId, 'after');
  return id;
}
