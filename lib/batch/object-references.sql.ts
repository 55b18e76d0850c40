import type { Db } from '../db/database.ts';
import type { PayloadKind } from '../payloads/payload-store.ts';
import { OPEN_UPLOADS } from './submit/uploads.sql.ts';

/** Of the given object ids, those that something refers to at this moment. */
export async function referencedObjects(db: Db, kind: PayloadKind, ids: readonly string[]): Promise<Set<string>> {
  const text = {
    input: `select input_id as id from batches where input_id = any($1::uuid[])
      union select object_id from files where object_id = any($1::uuid[])
      union select object_id from openai_batches where object_id = any($1::uuid[]) and ended_at is null`,
    custom_ids: 'select custom_ids_id as id from batches where custom_ids_id = any($1::uuid[])',
    segment: 'select segment_id as id from segment_refs where segment_id = any($1::uuid[])',
    result: 'select results_id as id from batches where results_id = any($1::uuid[])',
    index: 'select results_id as id from batches where results_id = any($1::uuid[])',
    output: 'select object_id as id from files where object_id = any($1::uuid[])',
    upload: OPEN_UPLOADS,
  }[kind];
  const result = await db.query<{ id: string }>({ name: `referenced_${kind}`, text, values: [ids] });
  return new Set(result.rows.map((row) => row.id));
}
