/** Runs work on the same thing one after the other, and work on other things beside it. */
export interface KeyedTurns {
  /** Runs `work` when all earlier work of this key has ended, whatever its end. */
  run<T>(key: string, work: () => Promise<T>): Promise<T>;
}

/** Turns that hold for this process. */
export function createKeyedTurns(): KeyedTurns {
  const last = new Map<string, Promise<unknown>>();
  return {
    async run(key, work) {
      const mine = (last.get(key) ?? Promise.resolve()).then(work, work);
      last.set(key, mine);
      try {
        return await mine;
      } finally {
        if (last.get(key) === mine) last.delete(key);
      }
    },
  };
}
