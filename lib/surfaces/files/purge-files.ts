import type { Db } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { deleteUnused } from './delete-unused.ts';
import { deleteExpiredFiles } from './stored-files.sql.ts';

const AT_ONCE = 500;

/**
 * Deletes the files that have expired, and their objects unless a batch uses them; gives how many files. No look-up finds
 * an expired file before that either.
 */
export async function purgeExpiredFiles(db: Db, payloads: Pick<PayloadStore, 'delete'>): Promise<number> {
  let purged = 0;
  let found: number;
  do {
    const objects = await deleteExpiredFiles(db, AT_ONCE);
    await deleteUnused(db, payloads, objects);
    found = objects.length;
    purged += found;
  } while (found === AT_ONCE);
  return purged;
}
