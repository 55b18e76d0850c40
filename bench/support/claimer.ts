import { createLog } from '../../lib/base/log.ts';
import { createDb, type Database } from '../../lib/db/database.ts';
import { createClaimer } from '../../lib/worker/claim.ts';
import { beginTenure } from '../../lib/worker/lease/tenure.ts';
import { PERIODS } from '../../lib/worker/periods.ts';
import type { Bed, BenchDatabase } from './bed.ts';

/** The items of one claim: as many as there are slots. */
export const CLAIM = 64;

type Claimed = Awaited<ReturnType<ReturnType<typeof createClaimer>['claim']>>['items'];

/** The means of a worker, without a worker: a pool of connections, and claims of 64 items. */
export interface Claims {
  db: Database;
  /** Claims for a worker with a valid lease. Throws if there are not enough items. */
  claim(workerId: string): Promise<Claimed>;
}

/** Opens a pool on a database of the bed, until the section ends. */
export function openClaims(bed: Bed, { dsn }: BenchDatabase): Claims {
  const db = createDb({ dsn, max: 2, prepared: true, applicationName: 'bench', log: createLog('silent') });
  bed.defer(() => db.close());
  const claimer = createClaimer({
    db,
    log: createLog('silent'),
    retry: PERIODS.databaseRetry,
    instance: 'bench',
    random: Math.random,
    refreshCatalog: async () => {},
    catalogVersion: () => Number.MAX_SAFE_INTEGER,
    observe: () => {},
  });
  return {
    db,
    async claim(workerId) {
      const { items } = await claimer.claim(beginTenure(workerId).tenure, CLAIM);
      if (items.length !== CLAIM) throw new Error(`claimed ${items.length} items instead of ${CLAIM}`);
      return items;
    },
  };
}
