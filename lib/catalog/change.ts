import { isUuid } from '../base/clock.ts';
import { ApiError } from '../base/errors.ts';
import type { Database, Db } from '../db/database.ts';
import { slug } from '../model/slug.ts';
import { deleteObjects } from './catalog.sql.ts';
import { bumpCatalogVersion, lockCatalog } from './catalog-state.sql.ts';
import { planChange } from './change-set.ts';
import { type CatalogDocument, CatalogError, type CatalogFault, type Claim } from './documents/document.ts';
import type { Kind } from './documents/kinds.ts';
import { referrersOf } from './documents/references.ts';
import { at } from './material.ts';
import type { KeyDigest } from './relay-key.ts';
import type { SecretBox } from './secrets/secret-box.ts';
import { type CatalogState, objectKey, readState, type StoredObject } from './state.ts';
import { type ObjectView, viewOf } from './view.ts';
import { writeChangeSet } from './write.ts';

// Single changes through the control API: the same plan as `apply`, for one document, under the same lock.

/** The dependencies of a single change; the environment and the secret box are those of this replica. */
export interface ChangeDeps {
  db: Database;
  env: Readonly<Record<string, string | undefined>>;
  secretBox: SecretBox | null;
  /** Makes a relay key; the plaintext is shown once and kept nowhere (`lib/auth/keys.ts`). */
  generateKey(): KeyDigest & { plaintext: string };
}

/** An object as it is stored now, and the plaintext that is shown only once. */
export interface Changed {
  object: ObjectView;
  /** Of a key that was just made here; null otherwise, as when the plaintext comes from the environment. */
  plaintext: string | null;
  warnings: CatalogFault[];
}

/** Creates an object. Throws CatalogError for faults, 409 `conflict` for a name that is taken, a model's also by slug. */
export async function createObject(document: CatalogDocument, deps: ChangeDeps): Promise<Changed> {
  return deps.db.transaction(async (tx) => {
    await lockCatalog(tx);
    const state = await readState(tx);
    const taken = namesake(state, document);
    if (taken) throw new ApiError('conflict', `${describe(taken)} exists already`, { param: 'metadata.name' });
    return write(tx, state, document, deps);
  });
}

/**
 * Replaces metadata and spec of an object; kind, name and id stay. Throws CatalogError for faults, another name among
 * them, and 404 for an unknown id.
 */
export async function replaceObject(id: string, document: CatalogDocument, deps: ChangeDeps): Promise<Changed> {
  return deps.db.transaction(async (tx) => {
    await lockCatalog(tx);
    const state = await readState(tx);
    const stored = byId(state, document.kind, id);
    if (stored.name !== document.name) {
      throw new CatalogError([at(document, 'metadata.name', `may not change: it is "${stored.name}"`)]);
    }
    return write(tx, state, document, deps);
  });
}

/** The faults of a refused document beside its own: references to missing objects, names that are taken. */
export async function faultsOfClaim(claim: Claim, { db }: Pick<ChangeDeps, 'db'>): Promise<CatalogFault[]> {
  const secrets = { env: {}, box: null, newKey: null };
  const change = { documents: [], claims: [claim], applied: false, prune: false, ...secrets };
  return planChange(await readState(db), change).faults;
}

/** Deletes an object. Throws 404 for an unknown id, 409 `conflict` with everything that refers to it. */
export async function deleteObject(kind: Kind, id: string, deps: Pick<ChangeDeps, 'db'>): Promise<void> {
  await deps.db.transaction(async (tx) => {
    await lockCatalog(tx);
    const state = await readState(tx);
    const stored = byId(state, kind, id);
    const referrers = referrersOf(stored, state.objects.values());
    if (referrers.length > 0) {
      const list = referrers.map(describe).join(', ');
      throw new ApiError('conflict', `${describe(stored)} is referred to by ${list}`);
    }
    await deleteObjects(tx, [stored.id]);
    await bumpCatalogVersion(tx);
  });
}

async function write(tx: Db, state: CatalogState, document: CatalogDocument, deps: ChangeDeps): Promise<Changed> {
  let plaintext: string | null = null;
  const plan = planChange(state, {
    documents: [document],
    claims: [],
    applied: false,
    prune: false,
    env: deps.env,
    box: deps.secretBox,
    newKey: () => {
      const key = deps.generateKey();
      plaintext = key.plaintext;
      return { hash: key.hash, prefix: key.prefix };
    },
  });
  if (plan.faults.length > 0) throw new CatalogError(plan.faults);
  await writeChangeSet(tx, plan);
  const written = (await readState(tx, { kind: document.kind })).objects.get(objectKey(document))!;
  return { object: viewOf(written), plaintext, warnings: plan.warnings };
}

function namesake(state: CatalogState, { kind, name }: CatalogDocument): StoredObject | undefined {
  const same = state.objects.get(objectKey({ kind, name }));
  if (same || kind !== 'Model') return same;
  return [...state.objects.values()].find((object) => object.kind === kind && slug(object.name) === slug(name));
}

function byId(state: CatalogState, kind: Kind, id: string): StoredObject {
  const wanted = id.toLowerCase();
  const found = isUuid(wanted)
    ? [...state.objects.values()].find((o) => o.id === wanted && o.kind === kind)
    : undefined;
  if (found === undefined) throw new ApiError('not_found');
  return found;
}

function describe(object: { kind: Kind; name: string }): string {
  return `${object.kind} "${object.name}"`;
}
