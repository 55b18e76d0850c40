import type { Db } from '../db/database.ts';
import type { HostKey } from '../model/catalog.ts';
import { deleteBreakers, readBreaker } from './keypool.sql.ts';

/** The breaker of a host key as the control API shows it. Times are RFC 3339 UTC with milliseconds. */
export interface KeyHealthView {
  name: string;
  state: 'closed' | 'open' | 'half_open';
  /** The failures in a row, 0 to 7. */
  step: number;
  /** Null if closed, and without end after a 401. */
  open_until: string | null;
  reason: 'auth' | 'rate_limit' | 'server_error' | 'network' | null;
  /** The models that rest on this key after a 403. */
  models: { model: string; until: string }[];
}

/** Reads the breaker of a host key's present value as Postgres has it. Never shows the value. */
export async function keyHealth(db: Db, hostKey: HostKey): Promise<KeyHealthView> {
  const view: KeyHealthView = {
    name: hostKey.name,
    state: 'closed',
    step: 0,
    open_until: null,
    reason: null,
    models: [],
  };
  for (const row of await readBreaker(db, hostKey.breakerKey)) {
    if (row.reason === 'forbidden') {
      view.models.push({ model: row.model, until: row.open_until!.toISOString() });
    } else {
      view.state = row.half_open ? 'half_open' : 'open';
      view.step = row.step;
      view.open_until = row.open_until?.toISOString() ?? null;
      view.reason = row.reason;
    }
  }
  return view;
}

/**
 * Closes the breaker of a host key's present value and wakes its resting models. Other replicas learn it within a
 * second, by a notice or by their next read. The replica that took the call resets through its pool.
 */
export function resetKey(db: Db, hostKey: HostKey): Promise<void> {
  return deleteBreakers(db, hostKey.breakerKey);
}
