import type { Db } from '../db/database.ts';
import type { HostKey } from '../model/catalog.ts';
import type { BreakerReason } from './breaker.ts';
import { deleteBreakers, readBreaker } from './breakers.sql.ts';

/** One breaker as the control API shows it. Times are RFC 3339 UTC with milliseconds. */
interface BreakerView {
  state: 'closed' | 'open' | 'half_open';
  /** The failures in a row, 0 to 7. */
  step: number;
  /** Null if closed, and without end after a 401. */
  open_until: string | null;
  reason: BreakerReason | null;
}

/** The breakers of a host key: its own, and those of its models. */
export interface KeyHealthView extends BreakerView {
  name: string;
  /** The models whose breaker on this key is not closed, by name. */
  models: ({ model: string } & BreakerView)[];
}

/** Reads the breakers of a host key's present value as Postgres has them. Never shows the value. */
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
    const breaker: BreakerView = {
      state: row.half_open ? 'half_open' : 'open',
      step: row.step,
      open_until: row.open_until?.toISOString() ?? null,
      reason: row.reason,
    };
    if (row.model === '') Object.assign(view, breaker);
    else view.models.push({ model: row.model, ...breaker });
  }
  return view;
}

/**
 * Closes all breakers of a host key's present value. Other replicas learn it within a second, by a notice or by their
 * next read. The replica that took the call resets through its pool.
 */
export function resetKey(db: Db, hostKey: HostKey): Promise<void> {
  return deleteBreakers(db, hostKey.breakerKey);
}
