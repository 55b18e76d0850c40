import type { Db } from './db.ts';

/** Raises a user's token version, which revokes every token issued before. Gives the new version. */
export async function raiseUserTokenVersion(tx: Db, userId: string): Promise<number> {
  const result = await tx.query<{ version: number }>({
    name: 'user_token_version_raise',
    text: `insert into user_token_versions as v (id, version) values ($1::uuid, 1)
           on conflict (id) do update set version = v.version + 1
           returning version`,
    values: [userId],
  });
  return result.rows[0]!.version;
}
