import type { Shape } from './catalog.ts';

/** Item states. `completed`, `discarded` and `cancelled` are final and never change (docs/state-machine.md). */
export const ITEM_STATES = ['available', 'running', 'completed', 'discarded', 'cancelled'] as const;
export type ItemState = (typeof ITEM_STATES)[number];
export type BatchStatus = 'queued' | 'cancelled';

/** Who submitted, as recorded on the batch at submit; attribution of every usage event of the batch. */
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
  /** Of a token: its `exp` (epoch ms), user version and user id; null for a key. */
  tokenExpiresAt: number | null;
  tokenVersion: number | null;
}

/** What a running item needs to know of its batch; the same object for all items of a batch in one claim. */
export interface BatchContext extends Attribution {
  id: string;
  shape: Shape;
  surface: string;
  anthropicVersion: string | null;
  anthropicBeta: string | null;
  /** Upstream rounds an item may take (1 on the native surface unless asked for). */
  maxAttempts: number;
  onLimit: 'fail' | 'wait';
  /** Epoch ms by the database's clock; null without a completion window. */
  expiresAt: number | null;
  inputId: string;
}

/** One claimed item. */
export interface ClaimedItem {
  batch: BatchContext;
  idx: number;
  claimNo: number;
  inputOffset: number;
  inputLength: number;
  inputCrc: number;
  /** Upstream calls already made in earlier runs, and how many of those runs counted against `maxAttempts`. */
  attempts: number;
  rounds: number;
  /** Milliseconds already spent in pauses for open breakers, by the database's clock. */
  waitedMs: number;
  loadFailures: number;
}
