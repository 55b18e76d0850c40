import { describe, expect, test } from 'vitest';
import { failureOf, nextBinding, nextKey } from '../../../lib/upstream/attempt-policy.ts';
import type { CallClass, CallResult } from '../../../lib/upstream/call-result.ts';
import { classOfError, classOfStatus } from '../../../lib/upstream/classify.ts';

function result(callClass: CallClass, over: Partial<CallResult> = {}): CallResult {
  return {
    class: callClass,
    status: 0,
    body: null,
    parsed: undefined,
    badReason: null,
    message: null,
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
    [402, null, 'account'],
    [403, null, 'forbidden'],
    [408, null, 'transient'],
    [409, null, 'transient'],
    [425, null, 'transient'],
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

describe('the class of an error that says that there is no credit', () => {
  const anthropic = (message: string) => ({ type: 'error', error: { type: 'invalid_request_error', message } });
  const openai = (code: string | null, type: string) => ({ error: { message: 'x', type, param: null, code } });
  const of = (status: number, body: unknown, retryAfterMs: number | null = null) =>
    classOfError(status, retryAfterMs, Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)));

  test.each([
    [402, ''],
    [429, openai('insufficient_quota', 'insufficient_quota')],
    [429, openai(null, 'insufficient_quota')],
    [429, openai('billing_not_active', 'billing_not_active')],
    [400, openai('billing_hard_limit_reached', 'invalid_request_error')],
    [429, openai(null, 'exceeded_current_quota_error')],
    [403, { type: 'error', error: { type: 'billing_error', message: 'x' } }],
    [429, [openai('insufficient_quota', 'x')]],
    [400, anthropic('Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.')],
    [400, anthropic('You have reached your specified API usage limits. You will regain access on 2026-12-31.')],
    [429, anthropic('You have reached your specified workspace API usage limits. You will regain access soon.')],
    [403, { code: 'x', error: 'Your team 0b1c-2 has either used all available credits or reached its limit.' }],
    [403, { code: 'x', error: "Your newly created team doesn't have any credits yet." }],
  ])('%i %j is account, with any Retry-After', (status, body) => {
    expect(of(status, body)).toBe('account');
    expect(of(status, body, 60_000)).toBe('account');
  });

  test.each([
    // A request cannot open the breaker of a key by what it makes an upstream repeat.
    [400, anthropic("model: 'Your credit balance is too low' is not a model"), 'client_error'],
    [400, anthropic('messages.0: insufficient_quota'), 'client_error'],
    [400, { message: 'Your credit balance is too low', code: 'insufficient_quota' }, 'client_error'],
    [400, { error: { message: { code: 'insufficient_quota' } } }, 'client_error'],
    [400, '{"error":{"code":"insufficient_quota"}', 'client_error'],
    [400, { error: { code: 'insufficient_quota', pad: 'x'.repeat(16_384) } }, 'client_error'],
    // Gemini's limits by the minute.
    [429, [{ error: { code: 429, message: 'You exceeded your current quota', status: 'X' } }], 'rate_limit_short'],
    [429, openai('rate_limit_exceeded', 'requests'), 'rate_limit_short'],
    [401, openai('insufficient_quota', 'x'), 'auth'],
    [500, openai('insufficient_quota', 'x'), 'server_error'],
    [400, 'null', 'client_error'],
    [400, '[]', 'client_error'],
    [400, '{"error":null}', 'client_error'],
    [403, '', 'forbidden'],
  ] as const)('%i %j is not', (status, body, expected) => {
    expect(of(status, body)).toBe(expected);
    expect(classOfError(status, null, null)).toBe(classOfStatus(status, null));
  });
});

describe('what is tried next', () => {
  const rows: [CallClass, key: boolean, binding: boolean][] = [
    ['success', false, false],
    ['bad_response', false, false],
    ['auth', true, true],
    ['account', true, true],
    ['forbidden', true, true],
    ['rate_limit_short', true, true],
    ['rate_limit_long', true, true],
    ['server_error', true, true],
    ['transient', true, true],
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
