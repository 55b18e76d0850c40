import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ApiError, Undone } from '../../../lib/base/errors.ts';
import {
  classOf,
  type DatabaseErrorClass,
  isConnectionError,
  isDatabaseAway,
  isDataError,
  isRetryable,
  retryLevel,
  sqlState,
} from '../../../lib/db/errors.ts';

const withCode = (code: unknown, more: object = {}) => Object.assign(new Error('x'), { code, ...more });

/** The meaning of each class to those who ask: the columns of the table in lib/db/errors.ts, in its order. */
const MEANING: Record<DatabaseErrorClass, string[]> = {
  own: [],
  away: ['unknown', 'away'],
  busy: ['unknown'],
  retry: ['retry'],
  data: ['data'],
  refused: [],
  foreign: ['unknown'],
};

function meaningOf(error: unknown): string[] {
  const asked = {
    unknown: isConnectionError(error),
    away: isDatabaseAway(error),
    retry: isRetryable(error),
    data: isDataError(error),
  };
  return Object.entries(asked).flatMap(([name, holds]) => (holds ? [name] : []));
}

const CASES: (readonly [DatabaseErrorClass, unknown])[] = [
  ['own', new ApiError('conflict')],
  ['own', new Undone('x')],
  // An error of our own may carry anything.
  ['own', Object.assign(new ApiError('conflict'), { code: '57P01' })],
  ...['08006', '08P01', '57P01', '57P03', '53300', '53100'].map((code) => ['away', withCode(code)] as const),
  ...['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT', 'EHOSTUNREACH', 'ENOTFOUND', 'EAI_AGAIN'].map(
    (code) => ['away', withCode(code)] as const,
  ),
  ['away', withCode('ENOENT', { syscall: 'connect' })],
  ['away', withCode('EACCES', { syscall: 'connect' })],
  ...[
    'Connection terminated unexpectedly',
    'Connection terminated',
    'Connection terminated due to connection timeout',
    'Query read timeout',
    'timeout exceeded when trying to connect',
    'timeout expired',
    'Client has encountered a connection error and is not queryable',
    'There was an error establishing an SSL connection',
  ].map((message) => ['away', new Error(message)] as const),
  ['busy', withCode('55P03')],
  ['retry', withCode('40P01')],
  ['retry', withCode('40001')],
  ...['22021', '22003', '23505', '23514'].map((code) => ['data', withCode(code)] as const),
  ...['42P01', '25006', 'XX000', 'P0001', '57014', '40003'].map((code) => ['refused', withCode(code)] as const),
  ['foreign', new TypeError('x is undefined')],
  ['foreign', new TypeError('cannot connect a thing before the timeout')],
  ['foreign', withCode('ENOENT', { syscall: 'open' })],
  ['foreign', withCode('EIO', { syscall: 'read' })],
  ['foreign', withCode('EPERM')],
  ['foreign', withCode(5)],
  ['foreign', withCode(undefined)],
  ['foreign', 'Connection terminated'],
  ['foreign', null],
  ['foreign', undefined],
];

test.each(CASES)('is logged as an error unless waiting alone may mend it: %s: %s', (known, error) => {
  expect(retryLevel(error)).toBe(['away', 'busy', 'retry'].includes(known) ? 'warn' : 'error');
});

test.each(CASES)('is %s: %s', (known, error) => {
  expect(classOf(error)).toBe(known);
  expect(meaningOf(error)).toEqual(MEANING[known]);
});

test('every class has a case', () => {
  expect(new Set(CASES.map(([known]) => known))).toEqual(new Set(Object.keys(MEANING)));
});

test('the table of the doc comment is the one that holds', () => {
  const source = readFileSync(join(import.meta.dirname, '../../../lib/db/errors.ts'), 'utf8');
  const rows = [...source.matchAll(/^ \* \| `(\w+)` +\|[^|]*\|(.*)\|$/gm)].map((row) => {
    const marks = row[2]!.split('|').map((mark) => mark.trim() === 'yes');
    return [row[1], ['unknown', 'away', 'retry', 'data'].filter((_, i) => marks[i])];
  });
  expect(Object.fromEntries(rows)).toEqual(MEANING);
});

test.each(['EPIPE', 'EPERM', 5, undefined])('%s is no SQLSTATE', (code) => {
  expect(sqlState(withCode(code))).toBeUndefined();
});

test('a SQLSTATE is read from the error of the driver', () => {
  expect(sqlState(withCode('23505'))).toBe('23505');
});
