import type { Db } from '../db/database.ts';
import { readLastSuccess } from './usage.sql.ts';

/** A model without a success is looked up again after this long: many of its items may ask at once. */
const ASK_AGAIN_MS = 5_000;

/** The latest successes of models, over all replicas. */
export interface Successes {
  /**
   * Whether an item of the model succeeded within so many milliseconds. It looks at the latest 2,000 events only: false may
   * mean that the success lies behind more than those. Throws when Postgres does not answer.
   */
  within(model: string, ms: number): Promise<boolean>;
}

/** Reads from the usage events, and remembers what it read. Times are local monotonic milliseconds. */
export function createSuccesses(db: Db, monotonic: () => number): Successes {
  const known = new Map<string, { at: number; asking: Promise<number> | null; askedAt: number }>();

  const ask = async (model: string): Promise<number> => {
    const ageMs = await readLastSuccess(db, model);
    return ageMs === null ? Number.NEGATIVE_INFINITY : monotonic() - ageMs;
  };

  return {
    async within(model, ms) {
      const since = monotonic() - ms;
      const entry = known.get(model) ?? {
        at: Number.NEGATIVE_INFINITY,
        asking: null,
        askedAt: Number.NEGATIVE_INFINITY,
      };
      known.set(model, entry);
      if (entry.at > since) return true;
      if (entry.askedAt <= monotonic() - ASK_AGAIN_MS) {
        entry.askedAt = monotonic();
        entry.asking = ask(model);
      }
      try {
        entry.at = Math.max(entry.at, await entry.asking!);
      } catch (error) {
        entry.askedAt = Number.NEGATIVE_INFINITY;
        throw error;
      }
      return entry.at > since;
    },
  };
}
