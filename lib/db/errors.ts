import { ApiError, Undone } from '../base/errors.ts';

/**
 * The class of an error of a statement or a transaction:
 *
 * | Class     | What was thrown                                         | unknown | away | retry | data |
 * |-----------|---------------------------------------------------------|---------|------|-------|------|
 * | `own`     | ApiError and Undone, by our own code in a transaction   |         |      |       |      |
 * | `away`    | SQLSTATE 08, 53, 57P; a broken socket; pg's time-outs   | yes     | yes  |       |      |
 * | `busy`    | SQLSTATE 55P03: a lock was not free in time             | yes     |      |       |      |
 * | `retry`   | SQLSTATE 40P01, 40001: deadlock, serialisation failure  |         |      | yes   |      |
 * | `data`    | SQLSTATE classes 22, 23: refused data, broken constraint|         |      |       | yes  |
 * | `refused` | any other SQLSTATE                                      |         |      |       |      |
 * | `foreign` | anything else without a SQLSTATE, such as a TypeError   | yes     |      |       |      |
 *
 * The columns are the predicates `isConnectionError`, `isDatabaseAway`, `isRetryable` and `isDataError`. `foreign` is why
 * the first two differ. For who decides about an object on disk, an error that nobody knows leaves the outcome of the
 * transaction open. For a caller, and for the state of this replica, it is a fault of ours and no outage of Postgres.
 */
export type DatabaseErrorClass = 'own' | 'away' | 'busy' | 'retry' | 'data' | 'refused' | 'foreign';

/** SQLSTATEs that one place expects and answers by itself. */
export const UNDEFINED_TABLE = '42P01';
export const FOREIGN_KEY_VIOLATION = '23503';
export const CANNOT_CONNECT_NOW = '57P03';
export const INVALID_PASSWORD = '28P01';

/** Of sockets and of the look-up of names. Files have other codes, and ENOENT. */
const NETWORK_CODES: ReadonlySet<string> = new Set([
  ...['ECONNREFUSED', 'ECONNRESET', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'ENOTFOUND', 'EAI_AGAIN'],
  ...['EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN', 'EPROTO'],
]);

/** Texts of pg and pg-pool, which have no codes. `test/integration/db/driver-texts.test.ts` provokes each. */
const SILENCE = /^(Query read timeout|timeout exceeded when trying to connect)$/;
const BROKEN =
  /^(Connection terminated|timeout expired|Client has encountered|The server does not support SSL|There was an error establishing an SSL)/;

/**
 * The class of anything that a statement or a transaction threw.
 *
 * @internal Exported for its tests.
 */
export function classOf(error: unknown): DatabaseErrorClass {
  if (error instanceof ApiError || error instanceof Undone) return 'own';
  const state = sqlState(error);
  if (state === undefined) return isBroken(error) ? 'away' : 'foreign';
  if (/^(08|53|57P)/.test(state)) return 'away';
  if (state === '55P03') return 'busy';
  if (state === '40P01' || state === '40001') return 'retry';
  return /^2[23]/.test(state) ? 'data' : 'refused';
}

/**
 * Wait and try again; whether the transaction was committed is unknown. False for what our own code throws in a
 * transaction: it is rolled back, on a connection that is as good as before.
 */
export function isConnectionError(error: unknown): boolean {
  const known = classOf(error);
  return known === 'away' || known === 'busy' || known === 'foreign';
}

/** Postgres could not be reached, or said that it does not work now: callers have to come again. */
export function isDatabaseAway(error: unknown): boolean {
  return classOf(error) === 'away';
}

/** The whole transaction is run again: nothing of it was kept. */
export function isRetryable(error: unknown): boolean {
  return classOf(error) === 'retry';
}

/** The level at which a failure is logged that is tried again: `error` for one that waiting alone will not fix. */
export function retryLevel(error: unknown): 'warn' | 'error' {
  const known = classOf(error);
  return known === 'away' || known === 'busy' || known === 'retry' ? 'warn' : 'error';
}

/** The same data fails again. */
export function isDataError(error: unknown): boolean {
  return classOf(error) === 'data';
}

/** No answer in time, or no connection in time because all of them wait for answers. A part of `away`. */
export function isSilence(error: unknown): boolean {
  return error instanceof Error && SILENCE.test(error.message);
}

/** SQLSTATE of a Postgres error, or undefined. No class begins with an E, but EPIPE would fit otherwise. */
export function sqlState(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null | undefined)?.code;
  return typeof code === 'string' && /^[0-9A-DF-Z][0-9A-Z]{4}$/.test(code) ? code : undefined;
}

/** Of `connect`, every code is the network's: a server on a Unix socket that stopped has taken its socket away (ENOENT). */
function isBroken(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (typeof code === 'string') return syscall === 'connect' || NETWORK_CODES.has(code);
  return isSilence(error) || BROKEN.test(error.message);
}
