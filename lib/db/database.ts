import pg from 'pg';
import type { Log } from '../base/log.ts';
import { isConnectionError, isDatabaseAway, isRetryable } from './errors.ts';
import { NO_LIMIT_MS, type SilenceWatch, STATEMENT_LIMIT_MS, watchSilence } from './silence.ts';
import { ALLOW_SEQSCAN, TRANSACTION } from './transaction.sql.ts';

// bigint and numeric columns are read as numbers: every int8 of this schema that is read so stays below 2^53.
// Money is read with an explicit ::text cast instead.
const types = new pg.TypeOverrides();
types.setTypeParser(pg.types.builtins.INT8, (text: string) => Number(text));

/**
 * Anything that runs one statement: the pool, or a client inside a transaction. A call that reads columns names the
 * type of its rows; without one they have no columns. `test/integration/db/statements.test.ts` compares the types with
 * the schema.
 */
export interface Db {
  query<Row extends pg.QueryResultRow = Record<never, never>>(statement: Statement): Promise<pg.QueryResult<Row>>;
}

/**
 * A static statement with its parameters. `name` makes it a prepared statement where the DSN is direct; behind a
 * transaction-mode pooler the name is dropped (see `createDb`).
 */
export interface Statement {
  name: string;
  text: string;
  values: readonly unknown[];
  /** Reads much of a large table: see OLTP_OPTIONS. */
  analytic?: true;
  /** Silence after which its connection is given up (STATEMENT_LIMIT_MS); an `analytic` one has no limit. */
  withinMs?: number;
}

/**
 * Prepared statements keep a generic plan. One that was made while a table held a handful of rows would scan it from end
 * to end ever after: a claim took 1.8 s on 20,000 items that way. So sequential scans are priced out. Statements that
 * want them say `analytic`. JIT costs more than any of these statements. They are sent at connect, so only to a direct
 * server: behind a pooler nothing is prepared, and every statement is planned for what the tables hold.
 */
const OLTP_OPTIONS = '-c enable_seqscan=off -c jit=off';

export interface Database extends Db {
  /** Runs `work` in one transaction on one connection; 40P01 and 40001 run it again, up to five times. */
  transaction<T>(work: (tx: Db) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

export interface DbOptions {
  dsn: string;
  max: number;
  /** False behind a transaction-mode pooler. */
  prepared: boolean;
  applicationName: string;
  /** Whether the last statement reached the server. */
  onState?(up: boolean): void;
  log: Log;
  /** How long an unused connection stays open, ms (60,000); 0 keeps it, without a timer. */
  idleMs?: number;
}

/** The pool. A broken idle connection is logged and replaced, never thrown. */
export function createDb(options: DbOptions): Database {
  const pool = new pg.Pool({
    connectionString: options.dsn,
    max: options.max,
    application_name: options.applicationName,
    connectionTimeoutMillis: 10_000,
    idleTimeoutMillis: options.idleMs ?? 60_000,
    keepAlive: true,
    query_timeout: STATEMENT_LIMIT_MS,
    types,
    ...(options.prepared ? { options: OLTP_OPTIONS } : {}),
  });
  pool.on('error', (error) => {
    // At a stop the embedded Postgres may end connections before they have closed themselves.
    if (!pool.ending) options.log.warn({ err: error.message }, 'idle database connection lost');
  });
  pool.on('connect', (client) => {
    client.on('error', () => {}); // the query in flight reports it; without a listener it would end the process
  });
  const silence = watchSilence(pool);
  const on = (client: pg.Pool | pg.PoolClient): Db => ({
    query: (statement) => {
      const config: pg.QueryConfig & { query_timeout: number } = {
        ...(options.prepared ? { name: statement.name } : {}),
        text: statement.text,
        values: statement.values as unknown[],
        query_timeout: statement.analytic ? NO_LIMIT_MS : (statement.withinMs ?? STATEMENT_LIMIT_MS),
      };
      return client.query(config);
    },
  });
  const run = on(pool);
  const watched = async <T>(work: () => Promise<T>): Promise<T> => {
    const since = performance.now();
    try {
      const result = await work();
      options.onState?.(true);
      return result;
    } catch (error) {
      silence.suspect(error, since);
      if (isDatabaseAway(error)) options.onState?.(false);
      throw error;
    }
  };
  return {
    query(statement) {
      if (!statement.analytic) return watched(() => run.query(statement));
      return watched(() =>
        once({ pool, on, silence, excused: true }, async (tx) => {
          if (options.prepared) await tx.query(ALLOW_SEQSCAN);
          return tx.query(statement);
        }),
      );
    },
    async transaction(work) {
      for (let attempt = 1; ; attempt++) {
        try {
          return await watched(() => once({ pool, on, silence, excused: false }, work));
        } catch (error) {
          if (attempt >= 5 || !isRetryable(error)) throw error;
        }
      }
    },
    close: () => pool.end(),
  };
}

interface Session {
  pool: pg.Pool;
  on(client: pg.PoolClient): Db;
  silence: SilenceWatch;
  /** Its statements may take long. */
  excused: boolean;
}

/**
 * A client of its own as a Db, for statements that belong to a session: locks and LISTEN. Names are dropped, because
 * each runs once.
 */
export function sessionOf(client: pg.Client): Db {
  return { query: ({ text, values }) => client.query({ text, values: [...values] }) };
}

async function once<T>({ pool, on, silence, excused }: Session, work: (tx: Db) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  if (excused) silence.excuse(client, true);
  let broken: Error | undefined;
  try {
    await client.query(TRANSACTION.begin);
    const result = await work(on(client));
    await client.query(TRANSACTION.commit);
    return result;
  } catch (error) {
    broken = isConnectionError(error) ? (error as Error) : undefined;
    if (!broken) await client.query(TRANSACTION.rollback).catch((failure: Error) => (broken = failure));
    throw error;
  } finally {
    silence.excuse(client, false);
    client.release(broken);
  }
}
