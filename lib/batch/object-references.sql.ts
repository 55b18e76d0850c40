import type { Db } from '../db/database.ts';
import type { PayloadKind } from '../payloads/payload-store.ts';
import { OPEN_UPLOADS } from './submit/uploads.sql.ts';

/** Where objects of each kind are referred to. */
const REFERENCED: Readonly<Record<PayloadKind, { name: string; text: string }>> = {
  input: {
    name: 'referenced_input',
    text: `select input_id as id from batches where input_id = any($1::uuid[])
      union select object_id from files where object_id = any($1::uuid[])
      union select object_id from openai_batches where object_id = any($1::uuid[]) and ended_at is null`,
  },
  custom_ids: {
    name: 'referenced_custom_ids',
    text: 'select custom_ids_id as id from batches where custom_ids_id = any($1::uuid[])',
  },
  segment: {
    name: 'referenced_segment',
    text: 'select segment_id as id from segment_refs where segment_id = any($1::uuid[])',
  },
  result: {
    name: 'referenced_result',
    text: 'select results_id as id from batches where results_id = any($1::uuid[])',
  },
  index: {
    name: 'referenced_index',
    text: 'select results_id as id from batches where results_id = any($1::uuid[])',
  },
  output: { name: 'referenced_output', text: 'select object_id as id from files where object_id = any($1::uuid[])' },
  upload: { name: 'referenced_upload', text: OPEN_UPLOADS },
};

/** Of the given object ids, those that something refers to at this moment. */
export async function referencedObjects(db: Db, kind: PayloadKind, ids: readonly string[]): Promise<Set<string>> {
  const { name, text } = REFERENCED[kind];
  const result = await db.query<{ id: string }>({ name, text, values: [ids] });
  return new Set(result.rows.map((row) => row.id));
}
