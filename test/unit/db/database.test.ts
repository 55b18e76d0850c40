import { expect, test } from 'vitest';
import { ApiError, Undone } from '../../../lib/base/errors.ts';
import { isConnectionError, isDataError, isRetryable, sqlState } from '../../../lib/db/database.ts';

const withCode = (code: unknown) => Object.assign(new Error('x'), { code });

test.each(['EPIPE', 'EPERM', 'ECONNRESET', 'ETIMEDOUT', undefined, 5])(
  'a broken socket (%s) has no SQLSTATE, and its outcome is unknown',
  (code) => {
    const error = withCode(code);
    expect([sqlState(error), isConnectionError(error), isDataError(error), isRetryable(error)]).toEqual([
      undefined,
      true,
      false,
      false,
    ]);
  },
);

test.each([new ApiError('conflict'), new Undone('x')])(
  'what our own code throws is no fault of the connection: %s',
  (e) => {
    expect([isConnectionError(e), isDataError(e), isRetryable(e)]).toEqual([false, false, false]);
  },
);

test.each([
  ['08006', { connection: true }],
  ['57P01', { connection: true }],
  ['57P03', { connection: true }],
  ['53300', { connection: true }],
  ['55P03', { connection: true }],
  ['40P01', { retry: true }],
  ['40001', { retry: true }],
  ['22021', { data: true }],
  ['22003', { data: true }],
  ['23505', { data: true }],
  ['23514', { data: true }],
  ['42P01', {}],
  ['25006', {}],
  ['XX000', {}],
  ['P0001', {}],
] as [string, { connection?: true; retry?: true; data?: true }][])('%s is %o', (code, kind) => {
  const error = withCode(code);
  expect(sqlState(error)).toBe(code);
  expect({
    connection: isConnectionError(error),
    retry: isRetryable(error),
    data: isDataError(error),
  }).toEqual({ connection: false, retry: false, data: false, ...kind });
});
