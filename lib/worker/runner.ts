import type { ItemRunner } from './engine.ts';
import type { PreparedItem } from './item/judge.ts';
import type { Outcome } from './item/outcome.ts';
import { type PrepareDeps, prepareItems, reserveEach } from './item/prepare.ts';
import { abandonItems, type RunDeps, runItem } from './item/run.ts';

/** Prepares and runs items: the engine's view of `prepare.ts` and `run.ts`. */
export function createItemRunner(deps: PrepareDeps & Omit<RunDeps, 'reserveNow'>): ItemRunner<PreparedItem> {
  // Items that get their slots in the same turn of the event loop reserve together: one round trip for all of them.
  let waiting: { entry: PreparedItem; resolve(outcome: Outcome | null): void; reject(error: unknown): void }[] = [];

  const reserveTogether = async () => {
    const group = waiting;
    waiting = [];
    try {
      const refusals = await reserveEach(
        deps,
        group.map(({ entry }) => entry),
      );
      for (const { entry, resolve } of group) resolve(refusals.get(entry.item) ?? null);
    } catch (error) {
      for (const { reject } of group) reject(error);
    }
  };

  const run: RunDeps = {
    ...deps,
    reserveNow: (entry) =>
      new Promise((resolve, reject) => {
        if (waiting.length === 0) setImmediate(reserveTogether);
        waiting.push({ entry, resolve, reject });
      }),
  };
  return {
    prepare: (loaded) => prepareItems(deps, loaded),
    run: (ready, signal) => runItem(run, ready, signal),
    abandon: (entries) => abandonItems(deps.limits, entries),
    forget: (outcome) => {
      if (outcome.kind === 'final') deps.client.release(outcome.response);
    },
  };
}
