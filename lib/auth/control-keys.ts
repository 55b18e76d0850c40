import { z } from 'zod';
import { isUuid } from '../base/clock.ts';
import { ApiError } from '../base/errors.ts';
import { bumpCatalogVersion, lockCatalog } from '../catalog/catalog-state.sql.ts';
import { readRelayKey, revokeRelayKey, rotateRelayKey } from '../catalog/relay-keys.sql.ts';
import type { Database, Db } from '../db/database.ts';
import { parseBody } from './json-fields.ts';
import { assertRotatable, generateKey, MAX_GRACE_SECONDS } from './keys.ts';

export interface KeyControlDeps<Document> {
  db: Database;
  /** Cryptographically random bytes (`Clock.random`). */
  random(n: number): Buffer;
  /** Reads the key as the control API shows it. `fromEnv`: the environment holds its plaintext. Null: unknown key. */
  readKey(tx: Db, id: string): Promise<{ document: Document; fromEnv: boolean } | null>;
  /** Loads what is committed into the catalogue of this replica. */
  refresh(): Promise<void>;
}

const graceFault = `must be a whole number of seconds from 0 to ${MAX_GRACE_SECONDS}`;

/** The body of a rotation. Without `graceSeconds` the old value stops at once. */
const rotateBody = z.strictObject({
  graceSeconds: z.int(graceFault).min(0, graceFault).max(MAX_GRACE_SECONDS, graceFault).default(0),
});

/**
 * `POST /keys/by-id/{id}/rotate`, 200: returns a new value, shown only once. The old one works for `graceSeconds` more.
 * Throws 404 for an unknown key. Throws 400 for a revoked key, one with `valueFrom`, and a faulty body.
 */
export async function rotateKey<Document>(
  id: string,
  body: unknown,
  deps: KeyControlDeps<Document>,
): Promise<{ plaintext: string; key: Document }> {
  const { graceSeconds } = parseBody(rotateBody, body);
  const keyId = asKeyId(id);
  const { plaintext, hash, prefix } = generateKey(deps.random);
  const key = await deps.db.transaction(async (tx) => {
    await lockCatalog(tx);
    const row = await readRelayKey(tx, keyId);
    const before = await deps.readKey(tx, keyId);
    if (row === null || before === null) throw new ApiError('not_found');
    assertRotatable({ revoked: row.revoked_at !== null, fromEnv: before.fromEnv });
    await rotateRelayKey(tx, keyId, { hash, prefix, graceSeconds });
    await bumpCatalogVersion(tx);
    return (await deps.readKey(tx, keyId))!.document;
  });
  await deps.refresh();
  return { plaintext, key };
}

/** `POST /keys/by-id/{id}/revoke`, 200: revokes the key for ever. A repeat is ignored. 404 for an unknown key. */
export async function revokeKey<Document>(id: string, deps: KeyControlDeps<Document>): Promise<Document> {
  const keyId = asKeyId(id);
  const key = await deps.db.transaction(async (tx) => {
    await lockCatalog(tx);
    const revoked = await revokeRelayKey(tx, keyId);
    if (revoked?.changed) await bumpCatalogVersion(tx);
    const after = await deps.readKey(tx, keyId);
    if (revoked === null || after === null) throw new ApiError('not_found');
    return after.document;
  });
  await deps.refresh();
  return key;
}

function asKeyId(id: string): string {
  const lower = id.toLowerCase();
  if (!isUuid(lower)) throw new ApiError('not_found');
  return lower;
}
