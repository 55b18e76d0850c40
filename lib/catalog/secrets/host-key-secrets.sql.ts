import type { Db } from '../../db/database.ts';

/** A sealed host key value; `id` is the host key's. */
export interface SecretRow {
  id: string;
  key_id: string;
  nonce: Buffer;
  ciphertext: Buffer;
}

/** Every sealed value. */
export async function listHostKeySecrets(db: Db): Promise<SecretRow[]> {
  const result = await db.query<SecretRow>({
    name: 'host_key_secrets_list',
    text: 'select id, key_id, nonce, ciphertext from host_key_secrets order by id',
    values: [],
  });
  return result.rows;
}

/** Stores sealed values in place of those that are there. */
export async function putHostKeySecrets(tx: Db, secrets: readonly SecretRow[]): Promise<void> {
  await tx.query({
    name: 'host_key_secrets_put',
    text: `insert into host_key_secrets (id, key_id, nonce, ciphertext)
           select * from unnest($1::uuid[], $2::text[], $3::bytea[], $4::bytea[])
           on conflict (id) do update
           set key_id = excluded.key_id, nonce = excluded.nonce, ciphertext = excluded.ciphertext`,
    values: [
      secrets.map((s) => s.id),
      secrets.map((s) => s.key_id),
      secrets.map((s) => s.nonce),
      secrets.map((s) => s.ciphertext),
    ],
  });
}

/** Forgets values, as of host keys that take theirs from the environment now. */
export async function deleteHostKeySecrets(tx: Db, ids: readonly string[]): Promise<void> {
  await tx.query({
    name: 'host_key_secrets_delete',
    text: 'delete from host_key_secrets where id = any ($1::uuid[])',
    values: [ids],
  });
}
