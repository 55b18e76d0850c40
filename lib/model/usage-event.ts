import type { Adapter } from './catalog.ts';

/** Why an item did not succeed (behaviour section 6). Null for a success. */
export type ErrorKind =
  | 'credential'
  | 'invalid_request'
  | 'model_not_found'
  | 'model_disabled'
  | 'policy_not_found'
  | 'policy_disabled'
  | 'model_not_allowed'
  | 'no_host_binding'
  | 'no_keys'
  | 'cross_shape'
  | 'rate_limited'
  | 'keys_exhausted'
  | 'upstream_error'
  | 'upstream_unreachable'
  | 'bad_response'
  | 'timeout'
  | 'cancelled'
  | 'worker_lost'
  | 'internal';

/** Meter parts of a usage event, bare keys; zero and absent are the same. Order is the column order in Postgres. */
export const TOKEN_PARTS = [
  'input',
  'output',
  'cache_read',
  'cache_creation',
  'cache_creation_5m',
  'cache_creation_1h',
  'reasoning',
  'audio_input',
  'audio_output',
  'accepted_prediction',
  'rejected_prediction',
  'server_tool_use',
] as const;
export type TokenPart = (typeof TOKEN_PARTS)[number];
/** Counts are integers in 1..2^53-1. */
export type TokenCounts = Partial<Record<TokenPart, number>>;

/** Which way an item took, or would have taken: what its event repeats of the catalogue, by name. */
export interface RouteFacts {
  requestedModel: string | null;
  model: string | null;
  provider: string | null;
  host: string | null;
  hostKey: string | null;
  adapter: Adapter | null;
  pricing: string | null;
  /** How the name was resolved: `name`, `alias`, `wildcard`, `snapshot`. */
  resolvedVia: string | null;
}

/** What happened to one item, for its usage event. Everything that is the same for the whole batch is not here. */
export interface UsageFacts {
  /** HTTP status of the last upstream answer; 0 when the item never reached an upstream. */
  status: number;
  errorKind: ErrorKind | null;
  /** The item's error text without the `batch item: ` prefix; null for a success. */
  errorMessage: string | null;
  /** Upstream calls made, over all keys and hosts. */
  attempts: number;
  /** Milliseconds from the first upstream call to the end; 0 when there was none. */
  durationMs: number;
  /** Epoch ms of: sending, the first byte of the answer's head, its last byte. Null when that did not happen. */
  startedAt: number | null;
  responseStartedAt: number | null;
  responseEndedAt: number | null;
  finishReason: string | null;
  route: RouteFacts;
  tokens: TokenCounts | null;
  /** Integer nano-USD; null is unpriced (never 0 for "unknown"). bigint in memory: sums must be exact. */
  costNanos: bigint | null;
  /** Part -> nano-USD; null when unpriced. */
  costBreakdown: Record<string, number> | null;
}
