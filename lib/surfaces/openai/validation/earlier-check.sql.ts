import type { Db } from '../../../db/database.ts';
import type { StoredFault } from '../openai-batches.sql.ts';
import type { ValidationJob } from './validation.sql.ts';

/** A file with its endpoint: what is checked once. */
type CheckedFile = Pick<ValidationJob, 'object_id' | 'endpoint'>;

/** The result of an earlier batch on the same file and endpoint. */
export type EarlierCheck =
  | { passed: false; faults: StoredFault[] }
  | { passed: true; batch: { id: string; count: number; customIdsId: string; model: string | null } };

// A batch that the retention has deleted has nothing left to use.
const FIND_CHECK = `
  select o.id, o.model, o.errors, b.total_items, b.custom_ids_id
  from openai_batches o left join batches b on b.id = o.id
  where o.object_id = $1::uuid and o.endpoint = $2::text and o.check_rules = $3::smallint
    and o.checked_requests is null and (o.errors is not null or b.custom_ids_id is not null)
  limit 1`;

/** Returns the result of the file's check by these rules; null if it was not checked, or nothing is left of it. */
export async function findCheck(db: Db, file: CheckedFile, rules: number): Promise<EarlierCheck | null> {
  const { rows } = await db.query<{
    id: string;
    model: string | null;
    errors: StoredFault[] | null;
    total_items: number | null;
    custom_ids_id: string | null;
  }>({ name: 'find_openai_check', text: FIND_CHECK, values: [file.object_id, file.endpoint, rules] });
  const row = rows[0];
  if (row === undefined) return null;
  if (row.errors !== null) return { passed: false, faults: row.errors };
  const { id, model, total_items: count, custom_ids_id: customIdsId } = row;
  return { passed: true, batch: { id, count: count!, customIdsId: customIdsId!, model } };
}

const FIND_CHECKED_REQUESTS = `
  select checked_requests from openai_batches
  where object_id = $1::uuid and endpoint = $2::text and check_rules = $3::smallint and checked_requests is not null
  limit 1`;

/** How many requests the file has, if it passed a check whose result was of no use: its owner had no room for them. */
export async function findCheckedRequests(db: Db, file: CheckedFile, rules: number): Promise<number | null> {
  const { rows } = await db.query<{ checked_requests: number }>({
    name: 'find_openai_checked_requests',
    text: FIND_CHECKED_REQUESTS,
    values: [file.object_id, file.endpoint, rules],
  });
  return rows[0]?.checked_requests ?? null;
}
