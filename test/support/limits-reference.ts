import type { Db } from '../../lib/db/database.ts';
import type { BucketRule } from '../../lib/limits/rules.ts';
import { sql } from './sql.ts';

/**
 * The five strategies as plain arithmetic ("Rate limit strategies" in docs/spec/gateway-rules.md), operation by
 * operation as migration 0005 has them, so that both come to the same doubles. Unit tests prove properties of it,
 * integration tests that Postgres does the same.
 */
export interface BucketState {
  used: number;
  previous: number;
  anchorUs: number;
}

export const FRESH: BucketState = { used: 0, previous: 0, anchorUs: 0 };

type Rule = Pick<BucketRule, 'meter' | 'amount' | 'window' | 'strategy'>;

const isLevel = (rule: Rule) => rule.strategy === 'token-bucket' || rule.strategy === 'leaky-bucket';
const windowUs = (rule: Rule) => rule.window * 1_000_000;

/** The bucket as it is now. */
export function roll(rule: Rule, state: BucketState, nowUs: number): BucketState {
  const window = windowUs(rule);
  if (isLevel(rule)) {
    const drained = (Math.max(0, nowUs - state.anchorUs) * rule.amount) / window;
    return { ...state, used: Math.max(0, state.used - drained), anchorUs: nowUs };
  }
  if (rule.strategy === 'session-window') {
    return nowUs - state.anchorUs >= window ? { ...state, used: 0, anchorUs: nowUs } : state;
  }
  const start = nowUs - (nowUs % window);
  if (state.anchorUs >= start) return state;
  const slid = rule.strategy === 'sliding-window' && state.anchorUs === start - window;
  return { used: 0, previous: slid ? state.used : 0, anchorUs: start };
}

/** Returns the amount that counts of a rolled bucket. */
export function current(rule: Rule, state: BucketState, nowUs: number): number {
  if (rule.strategy !== 'sliding-window') return state.used;
  return state.used + state.previous * (1 - Math.min(1, Math.max(0, nowUs - state.anchorUs) / windowUs(rule)));
}

/** How many requests a rolled bucket lets pass at this instant. */
export function room(rule: Rule, state: BucketState, nowUs: number): number {
  const left = rule.amount - current(rule, state, nowUs);
  if (rule.meter === 'requests') return Math.max(0, Math.floor(left + 1e-9));
  return left > 0 ? Number.POSITIVE_INFINITY : 0;
}

/** Seconds until a rolled bucket that refuses lets one request pass: rounded up, at least 1. */
export function waitSeconds(rule: Rule, state: BucketState, nowUs: number): number {
  const window = windowUs(rule);
  const need = rule.meter === 'requests' ? 1 - 5e-10 : 5e-10;
  const left = rule.amount - state.used - need;
  const elapsed = nowUs - state.anchorUs;
  let us: number;
  if (isLevel(rule)) us = ((state.used + need - rule.amount) * window) / rule.amount;
  else if (rule.strategy !== 'sliding-window') us = state.anchorUs + window - nowUs;
  else {
    us =
      left > 0
        ? window * (1 - left / state.previous) - elapsed
        : window + window * Math.max(0, 1 - (rule.amount - need) / state.used) - elapsed;
  }
  return Math.max(1, Math.ceil(Math.ceil(us) / 1_000_000));
}

/** Counts `n` requests (or tokens) in a rolled bucket. */
export function add(state: BucketState, n: number): BucketState {
  return { ...state, used: state.used + n };
}

/** Returns one request that was reserved at `atUs`; `state` is rolled. */
export function giveBack(rule: Rule, state: BucketState, nowUs: number, atUs: number): BucketState {
  if (isLevel(rule)) {
    const left = Math.max(0, 1 - (Math.max(0, nowUs - atUs) * rule.amount) / windowUs(rule));
    return { ...state, used: Math.max(0, state.used - left) };
  }
  if (atUs >= state.anchorUs) {
    const used = Math.max(0, state.used - 1);
    return { ...state, used, anchorUs: rule.strategy === 'session-window' && used === 0 ? 0 : state.anchorUs };
  }
  if (rule.strategy === 'sliding-window' && atUs >= state.anchorUs - windowUs(rule)) {
    return { ...state, previous: Math.max(0, state.previous - 1) };
  }
  return state;
}

/** Concurrency rows of a bucket that count now: the gauge. */
export async function countConcurrency(db: Db, bucketId: string): Promise<number> {
  const text = `select count(*)::integer as n from limit_concurrency where bucket_id = $1::uuid
    and held_until_us > (extract(epoch from clock_timestamp()) * 1000000)::bigint`;
  return (await sql<{ n: number }>(db, text, [bucketId]))[0]!.n;
}
