import type { BodyAccount, BodyBudget } from '../../../base/body-budget.ts';
import { uuidv7 } from '../../../base/clock.ts';
import { ApiError, reasonOf, Undone } from '../../../base/errors.ts';
import { pacer } from '../../../base/turns.ts';
import type { CompactDeps } from '../../../batch/results/compact.ts';
import { type PreparedBatch, type RecordDeps, recordBatch } from '../../../batch/submit/record.ts';
import { PayloadNotFound, type PayloadRef } from '../../../payloads/payload-store.ts';
import { type BatchEndpoint, shapeOf } from '../endpoints.ts';
import { type Fault, fileFaults } from './faults.ts';
import { type CheckedInput, inputCheck } from './input-check.ts';
import {
  endCancelled,
  endValidation,
  renewValidation,
  startOpenaiBatch,
  VALIDATION_LEASE_SECONDS,
  type ValidationJob,
} from './validation.sql.ts';

export interface ValidateDeps extends CompactDeps, RecordDeps {
  db: CompactDeps['db'];
  payloads: CompactDeps['payloads'];
  /** Counts what is in memory of an input file, for the owner of the batch. */
  bodies: BodyBudget;
  /** Null when the payload store is the one of this database, else why not: what is missing in another one is not lost. */
  checkStore(): Promise<string | null>;
}

/** Items try again until the window closes: no other end is set to that. */
const UNLIMITED = 32_767;
const RENEW_MS = (VALIDATION_LEASE_SECONDS * 1000) / 3;
/**
 * An object that does not exist is waited for so long: stores may be late. A store that does not exist is waited for
 * longer.
 */
const MISSING_SECONDS = 600;

/** Another has the batch by now, or its owner cancelled it: nothing is left to do here. */
export class NoLongerOurs extends Undone {
  constructor() {
    super('another validates the batch, or it was cancelled');
    this.name = 'NoLongerOurs';
  }
}

/**
 * Validates one batch whose lease is ours, from the stream of its input: it fails with all that is wrong with it, or
 * gets its items and runs. The lease is renewed on the way, in `job`. Throws NoLongerOurs, the signal's reason,
 * `overloaded`, or what the store and the database throw: then nothing has changed and it is to be tried again.
 */
export async function validateBatch(deps: ValidateDeps, job: ValidationJob, signal: AbortSignal): Promise<void> {
  const account = deps.bodies.open(job.attribution.owner);
  try {
    await validate(deps, job, account, signal);
  } finally {
    account.close();
  }
}

async function validate(
  deps: ValidateDeps,
  job: ValidationJob,
  account: BodyAccount,
  signal: AbortSignal,
): Promise<void> {
  if (job.cancelling) return endCancelled(deps.db, job.id);
  if (job.left_seconds <= 0) return ours(endValidation(deps.db, job, { status: 'expired' }));
  const fail = (errors: Fault[]) => ours(endValidation(deps.db, job, { status: 'failed', errors }));

  const startedAt = deps.clock.monotonic();
  let renewedAt = startedAt;
  const alive = async () => {
    signal.throwIfAborted();
    if (deps.clock.monotonic() - renewedAt < RENEW_MS) return;
    const lease = await renewValidation(deps.db, job);
    if (lease === null) throw new NoLongerOurs();
    job.lease = lease;
    renewedAt = deps.clock.monotonic();
  };
  const customIds: PayloadRef = { kind: 'custom_ids', id: uuidv7(deps.clock.now()) };
  const checked = await checkInput(deps, job, { customIds, account, alive }).catch(async (error) => {
    const lost = error instanceof PayloadNotFound && job.age_seconds > MISSING_SECONDS;
    if (lost && (await deps.checkStore()) === null) return fileFaults.unreadable;
    throw error;
  });
  if ('code' in checked) return fail([checked]);
  if (checked.faults.length > 0) {
    await discard(deps, customIds);
    return fail(checked.faults);
  }

  await alive();
  const leftSeconds = job.left_seconds - (deps.clock.monotonic() - startedAt) / 1000;
  try {
    await recordBatch(deps, {
      row: rowOf(job, customIds.id, leftSeconds),
      items: checked.items,
      crcs: checked.crcs,
      idempotency: null,
      objects: [customIds],
      within: async (tx) => {
        if (!(await startOpenaiBatch(tx, job, checked.model))) throw new NoLongerOurs();
      },
    });
  } catch (error) {
    if (!(error instanceof ApiError && error.code === 'too_many_pending')) throw error;
    await fail([fileFaults.tooManyPending(error.message)]);
  }
}

/** One pass over the file. The custom_ids are written as they are found: of 50,000 large ones none stays in memory. */
async function checkInput(
  { payloads }: ValidateDeps,
  job: ValidationJob,
  { customIds, account, alive }: { customIds: PayloadRef; account: BodyAccount; alive(): Promise<void> },
): Promise<CheckedInput> {
  const check = inputCheck(job.endpoint, account);
  const pace = pacer();
  const input: PayloadRef = { kind: 'input', id: job.object_id };
  const size = await payloads.size(input);
  let checked: CheckedInput | null = null;
  async function* found(): AsyncGenerator<Buffer> {
    for await (const chunk of payloads.stream(input, 0, size)) {
      await alive();
      await pace(check.push(chunk));
      if (check.full()) break;
      const ids = check.takeCustomIds();
      if (ids.length > 0) yield ids;
    }
    checked = await pace(check.end());
    const rest = check.takeCustomIds();
    if (rest.length > 0) yield rest;
  }
  await payloads.writeStream(customIds, found());
  return checked!;
}

function rowOf(job: ValidationJob, customIdsId: string, leftSeconds: number): PreparedBatch['row'] {
  return {
    ...job.attribution,
    id: job.id,
    surface: 'openai',
    shape: shapeOf(job.endpoint as BatchEndpoint),
    inputId: job.object_id,
    customIdsId,
    anthropicVersion: null,
    anthropicBeta: null,
    maxAttempts: UNLIMITED,
    onLimit: 'wait',
    completionWindowSeconds: leftSeconds,
  };
}

async function ours(ended: Promise<boolean>): Promise<void> {
  if (!(await ended)) throw new NoLongerOurs();
}

/** Best effort: what stays behind is unreferenced, and the sweep deletes it after a day. */
async function discard(deps: ValidateDeps, ref: PayloadRef): Promise<void> {
  await deps.payloads.delete([ref]).catch((error) => {
    deps.log.warn({ err: reasonOf(error), object: ref.id }, 'could not delete the custom_ids of a failed batch');
  });
}
