import type { Db } from '../db/database.ts';
import { TOKEN_PARTS } from '../model/usage-event.ts';
import { rawJSON } from '../runtime/v8.ts';
import { sumBatch, type TokenSums } from './usage.sql.ts';

/** An integer in a JSON answer: a number, or beyond 2^53 the digits themselves, which JSON.stringify writes as they are. */
export type JsonInteger = number;

/** The integer that the database returned as text. */
export function jsonInteger(digits: string): JsonInteger {
  const value = Number(digits);
  return Number.isSafeInteger(value) ? value : (rawJSON(digits) as JsonInteger);
}

/** Token sums by part, zeros left out. */
export function tokenMap(row: Readonly<TokenSums>): Record<string, JsonInteger> {
  const tokens: Record<string, JsonInteger> = {};
  for (const part of TOKEN_PARTS) {
    const sum = row[`tokens_${part}`];
    if (sum !== null && sum !== '0') tokens[part] = jsonInteger(sum);
  }
  return tokens;
}

/** The sum of costs. Null when no sent item has a price: 0 would mean that they were free. */
export function costOf(row: { cost_nanos: string | null; unpriced: number }): JsonInteger | null {
  if (row.cost_nanos !== null) return jsonInteger(row.cost_nanos);
  return row.unpriced > 0 ? null : 0;
}

/** Sums over a batch's usage events, as `GET /v1/batches/{id}?usage=true` shows them. */
export interface BatchUsage {
  tokens: Record<string, JsonInteger>;
  /** Nano-USD; null when something was sent and none of it has a price. */
  cost_nanos: JsonInteger | null;
  /** Items that reached an upstream and have no cost. */
  unpriced: number;
}

/** Adds up the events of a batch that are there so far; one without events has spent nothing. */
export async function batchUsage(db: Db, batchId: string): Promise<BatchUsage> {
  const sums = await sumBatch(db, batchId);
  return { tokens: tokenMap(sums), cost_nanos: costOf(sums), unpriced: sums.unpriced };
}
