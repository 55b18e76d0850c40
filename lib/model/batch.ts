import type { Shape } from './catalog.ts';

/** The item states. `completed`, `discarded` and `cancelled` are final and never change (docs/state-machine.md). */
export const ITEM_STATES = ['available', 'running', 'completed', 'discarded', 'cancelled'] as const;
export type ItemState = (typeof ITEM_STATES)[number];
export type BatchStatus = 'queued' | 'cancelled';

/** The submitter, as the batch records it at submit: the attribution of every usage event of the batch. */
export interface Attribution {
  /** The presented relay key's sha256 hex, or `user:<id>` for a token. Only this owner can see the batch. */
  owner: string;
  policyId: string | null;
  policy: string | null;
  projectId: string | null;
  project: string | null;
  teamId: string | null;
  team: string | null;
  principalKind: 'user' | 'serviceaccount' | null;
  principalId: string | null;
  credentialKind: 'key' | 'token';
  /** The key's id, or the token's jti. */
  credentialId: string;
  /** The `exp` (epoch ms), user version and user id of a token; null for a key. */
  tokenExpiresAt: number | null;
  tokenVersion: number | null;
}

/**
 * The reasons for which an item waits, in the order in which the first that is true counts. The
 * engine sets the reason as it decides; a reason is never derived afterwards.
 */
export type WaitReason =
  | 'paused'
  | 'scheduled'
  | 'no_worker'
  | 'storage_full'
  | 'budget'
  | 'rate_limit'
  | 'no_credit'
  | 'key_breaker'
  | 'host_down'
  | 'host_paused'
  | 'provider_job'
  | 'provider_queue_full'
  | 'retry_pause'
  | 'fair_share'
  | 'slots';

/** The reason of a released item's wait. Its owner may see the text: it has no host key and no text of the upstream. */
export interface Wait {
  reason: WaitReason;
  text: string;
  /** The host key that it waits for or was called with last, by name: for the administrator alone. */
  hostKey?: string | null;
}

/** The facts of its batch that a running item needs. All items of a batch in one claim share the same object. */
export interface BatchContext extends Attribution {
  id: string;
  shape: Shape;
  surface: string;
  anthropicVersion: string | null;
  anthropicBeta: string | null;
  /** The upstream rounds that an item may take (1 on the native surface unless the submit sets more). */
  maxAttempts: number;
  onLimit: 'fail' | 'wait';
  /** Epoch ms by the database's clock; null without a completion window. */
  expiresAt: number | null;
  inputId: string;
}

/** One item of a claim. */
export interface ClaimedItem {
  batch: BatchContext;
  idx: number;
  claimNo: number;
  inputOffset: number;
  inputLength: number;
  inputCrc: number;
  /** The upstream calls that earlier runs made, and how many of those runs counted against `maxAttempts`. */
  attempts: number;
  rounds: number;
  /** Milliseconds already spent in pauses for open breakers, by the database's clock. */
  waitedMs: number;
  loadFailures: number;
  /**
   * The breaker key of the host key that the item failed on with a 5xx or a broken connection; FAILED_ON_TWO when there
   * were two; null without such a failure.
   */
  failedKey: string | null;
  /**
   * Rounds that ended in a 5xx, a broken connection or a bad response, and the milliseconds since the first of them was
   * recorded (null without one).
   */
  failedRounds: number;
  failingForMs: number | null;
}

/** An item that failed on two keys is suspect: the fault is likely its own. */
export const FAILED_ON_TWO = '*';
