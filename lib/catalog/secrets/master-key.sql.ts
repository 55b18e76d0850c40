import { z } from 'zod';
import type { Db } from '../../db/database.ts';

const sealedRow = z.object({ key_id: z.string(), host_keys: z.number(), signing_keys: z.number() });

/** How much one master key has sealed. */
export type SealedCount = z.infer<typeof sealedRow>;

/** One row for each master key that a stored value was sealed with. More than one: the database is damaged. */
export async function countSealed(db: Db): Promise<SealedCount[]> {
  const result = await db.query({
    name: 'master_key_count_sealed',
    text: `select key_id, count(kid is null or null)::integer as host_keys, count(kid)::integer as signing_keys
      from (select key_id, null::uuid as kid from host_key_secrets
        union all select key_id, kid from token_signing_keys) as sealed
      group by key_id order by key_id`,
    values: [],
  });
  return result.rows.map((row) => sealedRow.parse(row));
}
