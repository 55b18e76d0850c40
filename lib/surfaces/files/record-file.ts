import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { isConnectionError } from '../../db/errors.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import type { FileRow } from './stored-files.sql.ts';

export interface DiscardDeps {
  payloads: Pick<PayloadStore, 'delete'>;
  log: Log;
}

/** Makes the row of an object that is durable already; when it fails and surely made none, the object goes. */
export async function recordFile(
  deps: DiscardDeps,
  object: PayloadRef,
  insert: () => Promise<FileRow>,
): Promise<FileRow> {
  try {
    return await insert();
  } catch (error) {
    // The answer to the commit may be what was lost: then the row is there and needs the object.
    if (!isConnectionError(error)) await discard(deps, object);
    throw error;
  }
}

/** Deletes an object that nothing refers to, best effort: what stays behind is the orphan sweep's. */
export async function discard({ payloads, log }: DiscardDeps, object: PayloadRef): Promise<void> {
  await payloads.delete([object]).catch((error) => {
    log.warn({ err: reasonOf(error), object: object.id }, 'could not delete an object without a file');
  });
}
