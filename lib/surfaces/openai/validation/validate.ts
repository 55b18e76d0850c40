import type { BodyAccount, BodyBudget } from '../../../base/body-budget.ts';
import { uuidv7 } from '../../../base/clock.ts';
import { ApiError, reasonOf, Undone } from '../../../base/errors.ts';
import { pacer } from '../../../base/turns.ts';
import type { CompactDeps } from '../../../batch/results/compact.ts';
import { itemsAt, itemsOf, type NewItems } from '../../../batch/submit/record.sql.ts';
import { type PreparedBatch, type RecordDeps, recordBatch, refuseOverPending } from '../../../batch/submit/record.ts';
import { PayloadNotFound, type PayloadRef } from '../../../payloads/payload-store.ts';
import { type BatchEndpoint, shapeOf } from '../endpoints.ts';
import type { StoredFault } from '../openai-batches.sql.ts';
import { findCheck, findCheckedRequests } from './earlier-check.sql.ts';
import { type Fault, fileFaults } from './faults.ts';
import { CHECK_RULES, type CheckedInput, inputCheck } from './input-check.ts';
import {
  endCancelled,
  endValidation,
  renewValidation,
  startOpenaiBatch,
  VALIDATION_LEASE_SECONDS,
  type ValidationEnd,
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
 * Validates one batch whose lease is ours, by an earlier check of its file or from the stream of its input. It fails with
 * all that is wrong with the file, or gets its items and runs. The lease is renewed on the way, in `job`. Throws
 * NoLongerOurs, the signal's reason, `overloaded`, or what the store and the database throw: then nothing has changed and
 * it is to be tried again.
 */
export async function validateBatch(deps: ValidateDeps, job: ValidationJob, signal: AbortSignal): Promise<void> {
  const account = deps.bodies.open(job.attribution.owner);
  try {
    await validate(deps, job, account, signal);
  } finally {
    account.close();
  }
}

/** The dependencies of a check. */
interface CheckWay {
  /** Where the custom ids are written to. */
  customIds: PayloadRef;
  /** Counts what is in memory. */
  account: BodyAccount;
  /** Renews the lease; throws when the batch is no longer ours. */
  alive(): Promise<void>;
}

async function validate(
  deps: ValidateDeps,
  job: ValidationJob,
  account: BodyAccount,
  signal: AbortSignal,
): Promise<void> {
  if (job.cancelling) return endCancelled(deps.db, job.id);
  if (job.left_seconds <= 0) return ours(endValidation(deps.db, job, { status: 'expired' }));

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
  const checked = await usable(deps, job, { customIds, account, alive }).catch(async (error) => {
    const lost = error instanceof PayloadNotFound && job.age_seconds > MISSING_SECONDS;
    if (lost && (await deps.checkStore()) === null) return UNREADABLE;
    throw error;
  });
  if ('status' in checked) return ours(endValidation(deps.db, job, checked));

  await alive();
  const leftSeconds = job.left_seconds - (deps.clock.monotonic() - startedAt) / 1000;
  try {
    await recordBatch(deps, {
      row: rowOf(job, customIds.id, leftSeconds),
      items: checked.items,
      idempotency: null,
      objects: [customIds],
      within: async (tx) => {
        const start = { model: checked.model, rules: CHECK_RULES };
        if (!(await startOpenaiBatch(tx, job, start))) throw new NoLongerOurs();
      },
    });
  } catch (error) {
    await ours(endValidation(deps.db, job, overPending(error, checked.items.count)));
  }
}

/** The parts that a batch is made of. */
interface UsableInput {
  items: NewItems;
  model: string | null;
}

const UNREADABLE: ValidationEnd = { status: 'failed', errors: [fileFaults.unreadable] };

/**
 * The result of the file's check, by an earlier check or one of its own, with the custom_ids written; or how the batch
 * ends. The batch of an owner without room for the requests fails before the file is read once more.
 */
async function usable(deps: ValidateDeps, job: ValidationJob, way: CheckWay): Promise<UsableInput | ValidationEnd> {
  const { customIds, alive } = way;
  const failed = (errors: Fault[] | StoredFault[]) => ({ status: 'failed', errors, rules: CHECK_RULES }) as const;
  const earlier = await findCheck(deps.db, job, CHECK_RULES);
  if (earlier?.passed === false) return failed(earlier.faults);
  const requests = earlier?.batch.count ?? (await findCheckedRequests(deps.db, job, CHECK_RULES));
  try {
    if (requests !== null) await refuseOverPending(deps, deps.db, job.attribution.owner, requests);
  } catch (error) {
    return overPending(error, requests!);
  }
  await deps.payloads.size(inputOf(job)); // lost bytes fail the batch, not each of its items
  if (earlier !== null && (await copyCustomIds(deps, earlier.batch.customIdsId, customIds, alive))) {
    return { items: itemsOf(earlier.batch), model: earlier.batch.model };
  }
  const { faults, items, crcs, model } = await checkInput(deps, job, way);
  if (faults.length === 0) return { items: itemsAt(items, crcs), model };
  await discard(deps, customIds);
  return failed(faults);
}

/** The end of a batch that its owner has no room for; throws any other error again. */
function overPending(error: unknown, requests: number): ValidationEnd {
  if (!(error instanceof ApiError && error.code === 'too_many_pending')) throw error;
  return { status: 'failed', errors: [fileFaults.tooManyPending(error.message)], rules: CHECK_RULES, requests };
}

/** Copies them, since an object belongs to one batch. False when the earlier batch was deleted meanwhile. */
async function copyCustomIds(
  { payloads }: ValidateDeps,
  from: string,
  to: PayloadRef,
  alive: () => Promise<void>,
): Promise<boolean> {
  const earlier: PayloadRef = { kind: 'custom_ids', id: from };
  async function* copied(length: number): AsyncGenerator<Buffer> {
    for await (const chunk of payloads.stream(earlier, 0, length)) {
      await alive();
      yield chunk;
    }
  }
  try {
    await payloads.writeStream(to, copied(await payloads.size(earlier)));
    return true;
  } catch (error) {
    if (error instanceof PayloadNotFound) return false;
    throw error;
  }
}

/** One pass over the file. The custom_ids are written as they are found: of 50,000 large ones none stays in memory. */
async function checkInput(
  { payloads }: ValidateDeps,
  job: ValidationJob,
  { customIds, account, alive }: CheckWay,
): Promise<CheckedInput> {
  const check = inputCheck(job.endpoint, account);
  const pace = pacer();
  const input = inputOf(job);
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

function inputOf(job: ValidationJob): PayloadRef {
  return { kind: 'input', id: job.object_id };
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
