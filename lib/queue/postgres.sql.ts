import type { Db } from '../db/database.ts';

/** Channels of NOTIFY. An older release listens to the same ones. */
export const CHANNELS = { wake: 'relay_wake', catalog: 'relay_catalog', breakers: 'relay_breakers' } as const;

const LISTEN = [
  { name: 'listen_wake', text: 'listen relay_wake' },
  { name: 'listen_catalog', text: 'listen relay_catalog' },
  { name: 'listen_breakers', text: 'listen relay_breakers' },
] as const satisfies readonly { name: `listen_${keyof typeof CHANNELS}`; text: `listen ${string}` }[];

/** Makes a session listen to every channel. Only on a direct connection: LISTEN does not survive a pooler. */
export async function listenToAll(session: Db): Promise<void> {
  for (const { name, text } of LISTEN) await session.query({ name, text, values: [] });
}

/** Sends a wake-up to every listening replica; delivered when the statement's transaction commits. */
export async function notifyWake(db: Db, payload: string): Promise<void> {
  await db.query({
    name: 'notify_wake',
    text: 'select pg_notify($1::text, $2::text)',
    values: [CHANNELS.wake, payload],
  });
}
