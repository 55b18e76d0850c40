import type { Database } from './database.ts';

export interface RenewingDatabase extends Database {
  /** Takes a new connection in place of one that was not used for too long. Between two pieces of work only. */
  renew(): void;
}

/**
 * A database for a process that is frozen between two pieces of work. No timer can tell that a firewall or a pooler
 * dropped the connection meanwhile, and the first statement on it would wait for minutes. `now` is wall time, because
 * the monotonic clock may stand still with the process.
 */
export function createRenewingDb(open: () => Database, now: () => number, maxIdleMs: number): RenewingDatabase {
  let current = open();
  let usedAt = now();
  const using = async <T>(work: Promise<T>): Promise<T> => {
    try {
      return await work;
    } finally {
      usedAt = now();
    }
  };
  return {
    query: (statement) => using(current.query(statement)),
    transaction: (work) => using(current.transaction(work)),
    close: () => current.close(),
    renew() {
      if (now() - usedAt <= maxIdleMs) return;
      void current.close().catch(() => {});
      current = open();
      usedAt = now();
    },
  };
}
