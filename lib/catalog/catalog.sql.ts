import type { Db } from '../db/database.ts';

/** One object of the catalogue with what is stored beside it; all null after the document for other kinds. */
export interface CatalogRow {
  id: string;
  kind: string;
  name: string;
  metadata: Record<string, unknown>;
  spec: Record<string, unknown>;
  applied: boolean;
  created_at: Date;
  updated_at: Date;
  hash: string | null;
  prefix: string | null;
  previous_hash: string | null;
  grace_until: Date | null;
  revoked_at: Date | null;
  key_id: string | null;
  nonce: Buffer | null;
  ciphertext: Buffer | null;
  token_version: number | null;
}

/** The objects (of one kind, or the one with an id) and the version, as of one moment: one statement is one snapshot. */
export async function listCatalog(
  db: Db,
  only: { kind?: string; id?: string } = {},
): Promise<{ version: number; rows: CatalogRow[] }> {
  const result = await db.query<Omit<CatalogRow, 'id'> & { state_version: number; id: string | null }>({
    name: 'catalog_list',
    // From catalog_state, so that an empty catalogue has its version too.
    text: `select s.version as state_version,
             o.id, o.kind, o.name, o.metadata, o.spec, o.applied, o.created_at, o.updated_at,
             k.hash, k.prefix, k.previous_hash, k.grace_until, k.revoked_at,
             h.key_id, h.nonce, h.ciphertext, v.version as token_version
           from catalog_state s
           left join catalog_objects o
             on ($1::text is null or o.kind = $1::text) and ($2::uuid is null or o.id = $2::uuid)
           left join relay_keys k on k.id = o.id
           left join host_key_secrets h on h.id = o.id
           left join user_token_versions v on v.id = o.id`,
    values: [only.kind ?? null, only.id ?? null],
  });
  const rows = result.rows.filter((row): row is typeof row & { id: string } => row.id !== null);
  return { version: result.rows[0]!.state_version, rows };
}

/** A document as it is written. */
export interface ObjectWrite {
  id: string;
  kind: string;
  name: string;
  metadata: object;
  spec: object;
  applied: boolean;
}

/** Inserts new objects. A (kind, name) that is taken breaks `catalog_object_name_unique`. */
export async function insertObjects(tx: Db, objects: readonly ObjectWrite[]): Promise<void> {
  await tx.query({
    name: 'catalog_insert',
    text: `insert into catalog_objects (id, kind, name, metadata, spec, applied)
           select id, kind, name, metadata::jsonb, spec::jsonb, applied
           from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[])
             as o (id, kind, name, metadata, spec, applied)`,
    values: [
      objects.map((o) => o.id),
      objects.map((o) => o.kind),
      objects.map((o) => o.name),
      objects.map((o) => JSON.stringify(o.metadata)),
      objects.map((o) => JSON.stringify(o.spec)),
      objects.map((o) => o.applied),
    ],
  });
}

/** Replaces documents whole; id, kind and name stay. */
export async function updateObjects(tx: Db, objects: readonly ObjectWrite[]): Promise<void> {
  await tx.query({
    name: 'catalog_update',
    text: `update catalog_objects as c
           set metadata = o.metadata::jsonb, spec = o.spec::jsonb, applied = o.applied, updated_at = clock_timestamp()
           from unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[]) as o (id, metadata, spec, applied)
           where c.id = o.id`,
    values: [
      objects.map((o) => o.id),
      objects.map((o) => JSON.stringify(o.metadata)),
      objects.map((o) => JSON.stringify(o.spec)),
      objects.map((o) => o.applied),
    ],
  });
}

/** Notes that `apply` found these objects as they are: it owns them from now on. */
export async function markApplied(tx: Db, ids: readonly string[]): Promise<void> {
  await tx.query({
    name: 'catalog_mark_applied',
    text: 'update catalog_objects set applied = true where id = any ($1::uuid[])',
    values: [ids],
  });
}

/** Deletes objects and what is stored beside them. References must have been checked. */
export async function deleteObjects(tx: Db, ids: readonly string[]): Promise<void> {
  await tx.query({
    name: 'catalog_delete',
    text: 'delete from catalog_objects where id = any ($1::uuid[])',
    values: [ids],
  });
}
