import { cutText } from '../base/errors.ts';
import type { ErrorKind } from '../model/usage-event.ts';
import type { CallClass, CallResult } from './call-result.ts';
import { shownMessage } from './told-error.ts';

/**
 * "Next key?" of "Upstream outcome classes" in docs/spec/gateway-rules.md. `unreachable` is not a fault of a key: the next
 * binding is tried.
 */
const NEXT_KEY: Record<CallClass, boolean> = {
  success: false,
  bad_response: false,
  auth: true,
  account: true,
  forbidden: true,
  rate_limit_short: true,
  rate_limit_long: true,
  server_error: true,
  transient: true,
  network: true,
  unreachable: false,
  client_error: false,
  too_large: false,
  timeout: false,
  aborted: false,
};

/** Whether another key of the same host is tried after an outcome of this class. */
export function nextKey(callClass: CallClass): boolean {
  return NEXT_KEY[callClass];
}

/** Whether the next granted binding is tried: after every retryable class once the keys are used up, or at once. */
export function nextBinding(callClass: CallClass): boolean {
  return NEXT_KEY[callClass] || callClass === 'unreachable';
}

/** The reason of an item's failure, for its error (without the `batch item: ` prefix) and its usage event. */
export interface CallFailure {
  errorKind: ErrorKind;
  text: string;
}

/**
 * The text of "Item failure texts" in docs/spec/gateway-rules.md for the outcome that stays an item's last one. `host`
 * is the host's name in the catalogue, `itemTimeoutS` the configured limit (not what was left of it), `secrets` the values
 * of the host's keys. Null for `success`, and for `aborted`: a cancelled item has no error. Of the upstream's own text, only
 * the message of an error inside a 2xx is in it (`shownMessage`).
 */
export function failureOf(
  result: CallResult,
  host: string,
  itemTimeoutS: number,
  secrets: readonly (string | null)[] = [],
): CallFailure | null {
  if (result.badReason !== null) {
    return { errorKind: 'bad_response', text: `upstream answered ${result.status} with ${badBody(result, secrets)}` };
  }
  switch (result.class) {
    case 'success':
    case 'aborted':
      return null;
    case 'too_large':
      return { errorKind: 'bad_response', text: 'response larger than 64 MiB' };
    case 'network':
      return { errorKind: 'upstream_error', text: 'connection to upstream lost' };
    case 'unreachable':
      return { errorKind: 'upstream_unreachable', text: `upstream "${cutText(host)}" unreachable after 3 attempts` };
    case 'timeout':
      return { errorKind: 'timeout', text: `timed out after ${itemTimeoutS}s` };
    default:
      return { errorKind: 'upstream_error', text: `upstream status ${result.status}` };
  }
}

function badBody({ badReason, message }: CallResult, secrets: readonly (string | null)[]): string {
  if (badReason === 'not_json') return 'a body that is not JSON';
  if (badReason === 'no_response') return 'a body that is no response';
  const shown = shownMessage(message, secrets);
  return shown === null ? 'an error' : `an error: ${shown}`;
}
