import { type Clock, systemClock } from '../../lib/base/clock.ts';
import { createLog } from '../../lib/base/log.ts';
import type { Db, Statement } from '../../lib/db/database.ts';
import { type Caller, createKeyPool, type KeyPool } from '../../lib/keypool/pool.ts';
import type { Catalog, HostKey, KeySelection } from '../../lib/model/catalog.ts';
import { planRoute, type RoutePlan, routesOf } from '../../lib/routing/plan.ts';
import type { CallClass } from '../../lib/upstream/call-result.ts';
import { catalogOf } from './routing-catalog.ts';

/** A replica's pool, with a count of its statements and a switch that cuts it off from Postgres. */
export interface Replica {
  pool: KeyPool;
  statements: string[];
  link: { cut: boolean };
}

export function replicaOn(db: Db, clock: Clock = systemClock): Replica {
  const statements: string[] = [];
  const link = { cut: false };
  const watched: Db = {
    query: (statement: Statement) => {
      statements.push(statement.name);
      return link.cut ? Promise.reject(new Error('Connection terminated unexpectedly')) : db.query(statement);
    },
  };
  const pool = createKeyPool({ db: watched, log: createLog('silent'), clock, probeLeaseMs: 300_000 });
  return { pool, statements, link };
}

/** A plan over host keys of one host, named as given, under a policy of its own. */
export function planOver(
  names: readonly string[],
  keySelection: KeySelection = 'prioritized',
  policy = 'default',
): RoutePlan {
  const catalog: Catalog = catalogOf({
    hosts: [{ name: 'local' }],
    models: [{ name: 'gpt-4o' }],
    bindings: [{ model: 'gpt-4o', host: 'local' }],
    hostKeys: names.map((name) => ({ name, host: 'local' })),
    policies: [{ name: policy, hostKeys: names, keySelection }],
  });
  const request = { requestedModel: 'gpt-4o', shape: 'openai' as const, policy: catalog.policies.get(policy) };
  return planRoute(routesOf(catalog), request) as RoutePlan;
}

export function keysOf(plan: RoutePlan): readonly HostKey[] {
  return plan.candidates[0]!.keys;
}

/** Names of the keys that an item would try, in order. */
export function orderOf(replica: Replica, plan: RoutePlan, owner = 'ann'): string[] {
  return replica.pool.order(plan.candidates[0]!, plan, null, owner).map(({ name }) => name);
}

/** The item `idx` of a batch, numbered as well. */
export function caller(idx = 0, more: Partial<Caller> & { batch?: number } = {}): Caller {
  const { batch = 1, ...rest } = more;
  return { batchId: batchNo(batch), idx, owner: 'ann', suspect: false, ...rest };
}

export function batchNo(n: number): string {
  return `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`;
}

/** An outcome of a call that was sent `ageMs` ago. */
export function outcome(cls: CallClass, more: { ageMs?: number; retryAfterMs?: number } = {}) {
  return { class: cls, startedAt: Date.now() - (more.ageMs ?? 0), retryAfterMs: more.retryAfterMs ?? null };
}

/** Makes all breakers older, as if the time had passed. */
export async function age(db: Db, ms: number): Promise<void> {
  await db.query({
    name: 'age_failures',
    text: `update breaker_failures set
      recorded_at = recorded_at - $1::float8 * interval '1 millisecond',
      seen_at = (select array_agg(s - $1::float8 * interval '1 millisecond') from unnest(seen_at) as s)`,
    values: [ms],
  });
  await db.query({
    name: 'age_breakers',
    text: `update breakers set
      opened_at = opened_at - $1::float8 * interval '1 millisecond',
      open_until = open_until - $1::float8 * interval '1 millisecond',
      probe_until = probe_until - $1::float8 * interval '1 millisecond'`,
    values: [ms],
  });
}
