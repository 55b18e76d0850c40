import type { BucketRule } from '../../limits/rules.ts';
import type { ClaimedItem, Wait } from '../../model/batch.ts';
import type { ErrorKind, RouteFacts, UsageFacts } from '../../model/usage-event.ts';

/** The action of a worker on an item: a value, never a thrown string. */
export type Outcome =
  /** The item is final. `response` becomes part of the group's segment; `error` is the whole text. */
  | {
      kind: 'final';
      state: 'completed' | 'discarded' | 'cancelled';
      error: string | null;
      response: Buffer | null;
      usage: UsageFacts;
      /** Rules with token meters that the recorded tokens are charged to. */
      charged?: readonly BucketRule[];
    }
  /** The item goes back to `available` and may run again after `delayMs`. */
  | {
      kind: 'released';
      delayMs: number;
      attempts: number;
      rounds: number;
      failedRounds: number;
      waitedMs: number;
      loadFailed: boolean;
      /** As of the item, with what this run added. */
      failedKey: string | null;
      /** Null when it may run at once, and when no decision sent it back: a stop, a slot that came too late. */
      wait: Wait | null;
    }
  /** The lease was lost: the present holder of the item records its outcome. */
  | { kind: 'dropped' };

export const NO_ROUTE: RouteFacts = {
  requestedModel: null,
  model: null,
  provider: null,
  host: null,
  hostKey: null,
  adapter: null,
  pricing: null,
  resolvedVia: null,
};

/** Facts of an item for which no upstream call was made in this run. */
export function unsentFacts(
  item: ClaimedItem,
  errorKind: ErrorKind,
  message: string | null,
  route = NO_ROUTE,
): UsageFacts {
  return {
    status: 0,
    errorKind,
    errorMessage: message,
    attempts: item.attempts,
    durationMs: 0,
    startedAt: null,
    responseStartedAt: null,
    responseEndedAt: null,
    finishReason: null,
    route,
    tokens: null,
    costNanos: null,
    costBreakdown: null,
  };
}

/**
 * A discarded item that was never sent; `text` is the error of "Item failure texts" in docs/spec/gateway-rules.md
 * without its prefix.
 */
export function refused(item: ClaimedItem, errorKind: ErrorKind, text: string, route?: RouteFacts): Outcome {
  return {
    kind: 'final',
    state: 'discarded',
    error: `batch item: ${text}`,
    response: null,
    usage: unsentFacts(item, errorKind, text, route),
  };
}

/** A cancelled item: it has no error text. */
export function cancelled(item: ClaimedItem, route?: RouteFacts): Outcome {
  return {
    kind: 'final',
    state: 'cancelled',
    error: null,
    response: null,
    usage: unsentFacts(item, 'cancelled', null, route),
  };
}

/** Back to `available` with everything it has spent so far. */
export function released(
  item: ClaimedItem,
  delayMs: number,
  spent: Partial<Omit<Extract<Outcome, { kind: 'released' }>, 'kind' | 'delayMs'>> = {},
): Outcome {
  return {
    kind: 'released',
    delayMs,
    attempts: spent.attempts ?? item.attempts,
    rounds: spent.rounds ?? item.rounds,
    failedRounds: spent.failedRounds ?? item.failedRounds,
    waitedMs: spent.waitedMs ?? item.waitedMs,
    loadFailed: spent.loadFailed ?? false,
    failedKey: spent.failedKey ?? item.failedKey,
    wait: spent.wait ?? null,
  };
}
