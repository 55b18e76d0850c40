import { TOKEN_PARTS } from '../model/usage-event.ts';
import { type JsonInteger, jsonInteger } from './json-integer.ts';
import type { TokenSums } from './usage.sql.ts';

/** Token sums by part, zeros left out. */
export function tokenMap(row: Readonly<TokenSums>): Record<string, JsonInteger> {
  const tokens: Record<string, JsonInteger> = {};
  for (const part of TOKEN_PARTS) {
    const sum = row[`tokens_${part}`];
    if (sum !== null && sum !== '0') tokens[part] = jsonInteger(sum);
  }
  return tokens;
}

/** What was spent: null when nothing of what was sent has a price, since 0 would say that it was free. */
export function costOf(row: { cost_nanos: string | null; unpriced: number }): JsonInteger | null {
  if (row.cost_nanos !== null) return jsonInteger(row.cost_nanos);
  return row.unpriced > 0 ? null : 0;
}
