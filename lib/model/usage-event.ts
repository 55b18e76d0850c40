import type { Adapter } from './catalog.ts';

/** The reasons why an item did not succeed ("Error kinds" in docs/spec/gateway-rules.md). Null for a success. */
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

/** Meter parts of a usage event, as bare keys. Zero equals absent. The order is that of the columns in Postgres. */
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

/** The route that an item took, or would have taken. Its event repeats these names of the catalogue. */
export interface RouteFacts {
  requestedModel: string | null;
  model: string | null;
  provider: string | null;
  host: string | null;
  hostKey: string | null;
  adapter: Adapter | null;
  pricing: string | null;
  /** The way in which the name was resolved: `name`, `alias`, `wildcard`, `snapshot`. */
  resolvedVia: string | null;
}

/** The facts of one item for its usage event. Facts that are the same for the whole batch are not here. */
export interface UsageFacts {
  /** The HTTP status of the last upstream answer; 0 if the item never reached an upstream. */
  status: number;
  errorKind: ErrorKind | null;
  /** The item's error text without the `batch item: ` prefix; null for a success. */
  errorMessage: string | null;
  /** The number of upstream calls, over all keys and hosts. */
  attempts: number;
  /** Milliseconds from the first upstream call to the end; 0 without a call. */
  durationMs: number;
  /** Epoch ms of the send, and of the answer's first byte of the head and last byte. Null if it did not happen. */
  startedAt: number | null;
  responseStartedAt: number | null;
  responseEndedAt: number | null;
  finishReason: string | null;
  route: RouteFacts;
  tokens: TokenCounts | null;
  /** Integer nano-USD. Null is unpriced (never 0 for "unknown"). In memory a bigint: sums must be exact. */
  costNanos: bigint | null;
  /** Part -> nano-USD; null if unpriced. */
  costBreakdown: Record<string, number> | null;
}
