import type { Adapter } from '../model/catalog.ts';

/**
 * The class of one upstream call's result ("Upstream outcome classes" in docs/spec/gateway-rules.md). It decides
 * whether another key is tried (`attempt-policy.ts`) and what the breaker does (the key pool).
 */
export type CallClass =
  | 'success'
  /**
   * A 2xx whose body is not a usable response: `badReason` says which text of "Item failure texts" in
   * docs/spec/gateway-rules.md.
   */
  | 'bad_response'
  | 'auth'
  /** The account of the key has no credit. */
  | 'account'
  | 'forbidden'
  | 'rate_limit_short'
  | 'rate_limit_long'
  | 'server_error'
  /** 408, 409 and 425: the same request may succeed when it is sent again. */
  | 'transient'
  | 'network'
  | 'unreachable'
  /** Any other status: final, no other key is tried. */
  | 'client_error'
  | 'too_large'
  | 'timeout'
  /** Cancelled, shut down, or the lease was lost: the caller's signal aborted the call. */
  | 'aborted';

export type BadReason = 'not_json' | 'no_response' | 'error_inside';

export interface CallResult {
  class: CallClass;
  /** HTTP status, 0 when no answer's head arrived. */
  status: number;
  /** The decoded body (gzip, deflate, br, zstd undone), of any status; null when it did not arrive whole. */
  body: Buffer | null;
  /**
   * Of a `success`: the body as JSON.parse returned it, so that usage and finish reason cost no second parse. Of one
   * above 64 KiB only the members that say these (`readLargeAnswer`).
   */
  parsed: unknown;
  /**
   * Why a 2xx is not a response ("Judgement of a 2xx answer" in docs/spec/gateway-rules.md); else null. Where an error inside
   * has a code that says so, the class is that of the code, and else `bad_response`.
   */
  badReason: BadReason | null;
  /** What the error inside a 2xx says, of at most 1,024 characters; it may hold anything. Else null. */
  message: string | null;
  contentType: string | null;
  /** The upstream's own request id header, cut; null when absent. */
  upstreamRequestId: string | null;
  /** Milliseconds, never negative: from Retry-After, or a header in milliseconds; null when absent. */
  retryAfterMs: number | null;
  /** Epoch ms. */
  startedAt: number;
  responseStartedAt: number | null;
  responseEndedAt: number | null;
}

/** One call, fully decided: nothing in it depends on the catalogue any more. */
export interface CallRequest {
  /** Absolute URL, path included. */
  url: string;
  headers: Record<string, string>;
  /** The item's own bytes in one or more pieces (the model value may be a piece of its own). */
  body: readonly Buffer[];
  /** Wire format of the answer: decides which result fields make `{"error":...}` a response. */
  adapter: Adapter;
  /** Embeddings: the inputs of the item. An answer with fewer vectors is not a response. */
  inputs?: number;
  /** Milliseconds left of the item's time limit. */
  timeoutMs: number;
  signal: AbortSignal;
}

/** Makes upstream calls. Never throws for anything the network or the upstream does. */
export interface UpstreamClient {
  call(request: CallRequest): Promise<CallResult>;
  /**
   * A body that `call` returned is read no more; to be said once of each body. Large ones count against a budget, and
   * are empty from then on: their memory is freed.
   */
  release(body: Buffer | null): void;
  close(): Promise<void>;
}
