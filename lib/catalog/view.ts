import { stringify } from 'yaml';
import type { Db } from '../db/database.ts';
import type { Metadata } from './documents/document.ts';
import { type Kind, SPECS } from './documents/kinds.ts';
import { readState, type StoredObject } from './state.ts';

/** A document as the control API returns it: never with a secret. */
export interface ObjectView {
  kind: Kind;
  metadata: { id: string; name: string } & Metadata;
  spec: Record<string, unknown>;
  /** Read-only. Of a Key and a HostKey only. */
  status?: Record<string, unknown>;
}

/** Returns an object as the control API shows it. */
export function viewOf(object: StoredObject): ObjectView {
  const { kind, id, name, metadata } = object;
  const status = statusOf(object);
  return {
    kind,
    metadata: { id, name, ...metadata },
    spec: specOf(object),
    ...(status === null ? {} : { status }),
  };
}

/** Returns the spec as it could be applied, in the order of its schema (jsonb keeps none), without secrets. */
function specOf(object: StoredObject): Record<string, unknown> {
  const revoked = object.key?.revokedAt ? { revoked: true } : {};
  const parsed = SPECS[object.kind].safeParse(object.spec);
  // A spec that an earlier release accepted and this one would refuse is shown as it is.
  return { ...(parsed.success ? parsed.data : object.spec), ...revoked };
}

function statusOf({ kind, key, spec, secret }: StoredObject): Record<string, unknown> | null {
  if (kind === 'HostKey') return spec.valueFrom.kind === 'stored' ? { valueStored: secret !== null } : null;
  if (key === null) return null;
  return {
    prefix: key.prefix,
    ...(key.revokedAt ? { revokedAt: key.revokedAt.toISOString() } : {}),
    ...(key.graceUntil ? { graceUntil: key.graceUntil.toISOString() } : {}),
  };
}

/** Every object of a kind, by name. */
export async function listViews(db: Db, kind: Kind): Promise<ObjectView[]> {
  return [...(await readState(db, { kind })).objects.values()].map(viewOf);
}

/** Returns the object of a kind with this name or, failing that, this id; null if neither exists. */
export async function findView(db: Db, kind: Kind, nameOrId: string): Promise<ObjectView | null> {
  const objects = [...(await readState(db, { kind })).objects.values()];
  const found =
    objects.find((object) => object.name === nameOrId) ??
    objects.find((object) => object.id === nameOrId.toLowerCase());
  return found === undefined ? null : viewOf(found);
}

/** A key for `lib/auth/control-keys.ts`, read in its transaction; null for an unknown id. */
export async function readKeyView(tx: Db, id: string): Promise<{ document: ObjectView; fromEnv: boolean } | null> {
  const [object] = (await readState(tx, { kind: 'Key', id })).objects.values();
  if (object?.kind !== 'Key') return null;
  return { document: viewOf(object), fromEnv: object.spec.valueFrom !== undefined };
}

/**
 * Returns the whole catalogue as YAML that applies to the same state. Secrets are left out. Applied to another
 * database, stored host keys have no value and keys without `valueFrom` are left out, each with a warning.
 */
export async function exportCatalog(db: Db): Promise<string> {
  const { objects } = await readState(db);
  const documents = [...objects.values()].map((object) => {
    const { name, kind, metadata } = object;
    return stringify({ kind, metadata: { name, ...metadata }, spec: specOf(object) }, { lineWidth: 0 });
  });
  return documents.join('---\n');
}
