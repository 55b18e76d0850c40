import type { Db } from '../db/database.ts';
import { type CatalogRow, listCatalog } from './catalog.sql.ts';
import type { Metadata } from './documents/document.ts';
import { isKind, KINDS, type Kind, type SpecOf } from './documents/kinds.ts';
import type { Sealed } from './secrets/secret-box.ts';

interface StoredOf<K extends Kind> {
  id: string;
  kind: K;
  name: string;
  metadata: Metadata;
  /** The spec as written, without defaults. A host key's `value` and a key's `revoked` stand beside it. */
  spec: SpecOf<K>;
  applied: boolean;
  createdAt: Date;
  updatedAt: Date;
  /** Only for a Key. */
  key: {
    hash: string;
    prefix: string;
    previousHash: string | null;
    graceUntil: Date | null;
    revokedAt: Date | null;
  } | null;
  /** Only for a HostKey with a stored value. */
  secret: Sealed | null;
  /** Only for a User; 0 if their tokens were never revoked. */
  tokenVersion: number;
}

export type StoredObject = { [K in Kind]: StoredOf<K> }[Kind];

/** The stored catalogue at one version. */
export interface CatalogState {
  version: number;
  /** Keyed by `kind/name`, in the order of KINDS, then by name. */
  objects: Map<string, StoredObject>;
}

/** Returns the key of an object in `CatalogState.objects`. */
export function objectKey(object: { kind: Kind; name: string }): string {
  return `${object.kind}/${object.name}`;
}

/** Reads the stored catalogue, whole or only a part. It ignores kinds that a newer release added. */
export async function readState(db: Db, only: { kind?: Kind; id?: string } = {}): Promise<CatalogState> {
  const { version, rows } = await listCatalog(db, only);
  const order = new Map<string, number>(KINDS.map((kind, i) => [kind, i]));
  const objects = rows.filter((row) => isKind(row.kind)).map(toStored);
  objects.sort((a, b) => order.get(a.kind)! - order.get(b.kind)! || (a.name < b.name ? -1 : 1));
  return { version, objects: new Map(objects.map((object) => [objectKey(object), object])) };
}

function toStored(row: CatalogRow): StoredObject {
  return {
    id: row.id,
    kind: row.kind,
    name: row.name,
    metadata: row.metadata,
    spec: row.spec,
    applied: row.applied,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    key:
      row.hash === null
        ? null
        : {
            hash: row.hash,
            prefix: row.prefix ?? '',
            previousHash: row.previous_hash,
            graceUntil: row.grace_until,
            revokedAt: row.revoked_at,
          },
    secret: row.key_id === null ? null : { keyId: row.key_id, nonce: row.nonce!, ciphertext: row.ciphertext! },
    tokenVersion: row.token_version ?? 0,
  } as StoredObject; // the one place where a row is trusted: only this module's writers fill the table
}
