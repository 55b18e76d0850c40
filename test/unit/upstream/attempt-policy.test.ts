import { describe, expect, test } from 'vitest';
import { failureOf, nextBinding, nextKey } from '../../../lib/upstream/attempt-policy.ts';
import type { CallClass, CallResult } from '../../../lib/upstream/call-result.ts';
import { classOfStatus } from '../../../lib/upstream/classify.ts';

function result(callClass: CallClass, over: Partial<CallResult> = {}): CallResult {
  return {
    class: callClass,
    status: 0,
    body: null,
    parsed: undefined,
    badReason: null,
    contentType: null,
    upstreamRequestId: null,
    retryAfterMs: null,
    startedAt: 0,
    responseStartedAt: null,
    responseEndedAt: null,
    ...over,
  };
}

describe('the class of a status', () => {
  test.each([
    [200, null, 'success'],
    [299, null, 'success'],
    [301, null, 'client_error'],
    [400, null, 'client_error'],
    [401, null, 'auth'],
    [403, null, 'forbidden'],
    [408, null, 'client_error'],
    [429, null, 'rate_limit_short'],
    [429, 0, 'rate_limit_short'],
    [429, 5_000, 'rate_limit_short'],
    [429, 5_001, 'rate_limit_long'],
    [499, null, 'client_error'],
    [500, null, 'server_error'],
    [529, null, 'server_error'],
    [599, null, 'server_error'],
    [600, null, 'client_error'],
  ] as const)('%i with Retry-After %s ms is %s', (status, retryAfterMs, expected) => {
    expect(classOfStatus(status, retryAfterMs)).toBe(expected);
  });
});

describe('what is tried next', () => {
  const rows: [CallClass, key: boolean, binding: boolean][] = [
    ['success', false, false],
    ['bad_response', false, false],
    ['auth', true, true],
    ['forbidden', true, true],
    ['rate_limit_short', true, true],
    ['rate_limit_long', true, true],
    ['server_error', true, true],
    ['network', true, true],
    ['unreachable', false, true],
    ['client_error', false, false],
    ['too_large', false, false],
    ['timeout', false, false],
    ['aborted', false, false],
  ];
  test.each(rows)('after %s another key: %s, another binding: %s', (callClass, key, binding) => {
    expect([nextKey(callClass), nextBinding(callClass)]).toEqual([key, binding]);
  });
});

describe('the text of a failed item', () => {
  const rows: [CallResult, kind: string, text: string][] = [
    [result('client_error', { status: 400 }), 'upstream_error', 'upstream status 400'],
    [result('client_error', { status: 302 }), 'upstream_error', 'upstream status 302'],
    [result('auth', { status: 401 }), 'upstream_error', 'upstream status 401'],
    [result('forbidden', { status: 403 }), 'upstream_error', 'upstream status 403'],
    [result('rate_limit_short', { status: 429 }), 'upstream_error', 'upstream status 429'],
    [result('rate_limit_long', { status: 429 }), 'upstream_error', 'upstream status 429'],
    [result('server_error', { status: 529 }), 'upstream_error', 'upstream status 529'],
    [result('network', { status: 200 }), 'upstream_error', 'connection to upstream lost'],
    [result('unreachable'), 'upstream_unreachable', 'upstream "local" unreachable after 3 attempts'],
    [result('timeout'), 'timeout', 'timed out after 300s'],
    [result('too_large', { status: 200 }), 'bad_response', 'response larger than 64 MiB'],
    [
      result('bad_response', { status: 200, badReason: 'not_json' }),
      'bad_response',
      'upstream answered 200 with a body that is not JSON',
    ],
    [
      result('bad_response', { status: 201, badReason: 'no_response' }),
      'bad_response',
      'upstream answered 201 with a body that is no response',
    ],
    [
      result('bad_response', { status: 202, badReason: 'error_inside' }),
      'bad_response',
      'upstream answered 202 with an error',
    ],
  ];
  test.each(rows)('%o has kind %s and says: %s', (outcome, errorKind, text) => {
    expect(failureOf(outcome, 'local', 300)).toEqual({ errorKind, text });
  });

  test('is absent for a success and for a cancelled item', () => {
    expect(failureOf(result('success', { status: 200 }), 'local', 300)).toBeNull();
    expect(failureOf(result('aborted'), 'local', 300)).toBeNull();
  });
});
