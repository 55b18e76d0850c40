import type { QueryResultRow } from 'pg';
import type { Db } from '../../lib/db/database.ts';

/** Runs a statement of a test's own and returns its rows. An empty name leaves it unprepared, so that no two can collide. */
export async function sql<Row extends QueryResultRow = QueryResultRow>(
  db: Db,
  text: string,
  values: readonly unknown[] = [],
): Promise<Row[]> {
  return (await db.query<Row>({ name: '', text, values })).rows;
}
