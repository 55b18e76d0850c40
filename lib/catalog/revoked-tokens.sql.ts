import type { Db } from '../db/database.ts';

/**
 * Ids of revoked tokens for `Catalog.revokedTokens`. Those that expired within the last hour are still among them:
 * replicas judge expiry by an estimate of this clock.
 */
export async function readRevokedTokens(db: Db): Promise<Set<string>> {
  const result = await db.query<{ jti: string }>({
    name: 'tokens_read_revoked',
    text: `select jti from tokens
      where revoked_at is not null and expires_at > clock_timestamp() - interval '1 hour'`,
    values: [],
  });
  return new Set(result.rows.map((row) => row.jti));
}
