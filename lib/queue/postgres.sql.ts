import type { Db } from '../db/database.ts';

/** Sends a wake-up to every listening replica; delivered when the statement's transaction commits. */
export async function notifyWake(db: Db, payload: string): Promise<void> {
  await db.query({ name: 'notify_wake', text: `select pg_notify('relay_wake', $1::text)`, values: [payload] });
}
