import { createPrivateKey, generateKeyPairSync, type KeyObject, randomUUID } from 'node:crypto';
import { ApiError, ConfigError } from '../base/errors.ts';
import { bumpCatalogVersion } from '../catalog/catalog-state.sql.ts';
import { requireMasterKey } from '../catalog/secrets/master-key.ts';
import type { SecretBox } from '../catalog/secrets/secret-box.ts';
import type { Database, Db } from '../db/database.ts';
import {
  insertSigningKey,
  lockSigningKeys,
  readSigningKeys,
  resealSigningKey,
  retireSigningKey,
  type SigningKeyRow,
} from './tokens.sql.ts';

/** An opened Ed25519 private key, and the `kid` of the tokens that it signs. */
export interface SigningKey {
  kid: string;
  privateKey: KeyObject;
}

/**
 * Reads the key that signs new tokens, inside the caller's transaction. The first use makes it, under an advisory lock,
 * so that two replicas that issue their first tokens at once agree on one. Throws 409 `conflict` with
 * another master key than that of this database.
 */
export async function currentSigningKey(tx: Db, box: SecretBox): Promise<SigningKey> {
  const existing = await findCurrent(tx);
  if (existing?.key_id === box.keyId) return openSigningKey(existing, box);
  await requireMasterKey(tx, box.keyId);
  await lockSigningKeys(tx);
  const made = await findCurrent(tx);
  return made === undefined ? addSigningKey(tx, box) : openSigningKey(made, box);
}

/**
 * Makes a new signing key and returns its `kid`. The key in use until now continues to verify as `previous`. The one
 * before it stops on every replica within a second, and the tokens that it signed stop with it. Throws 409
 * `conflict` with another master key than that of this database.
 */
export async function rotateSigningKeys(db: Database, box: SecretBox): Promise<string> {
  return db.transaction(async (tx) => {
    await requireMasterKey(tx, box.keyId);
    await lockSigningKeys(tx);
    await retireSigningKey(tx);
    return (await addSigningKey(tx, box)).kid;
  });
}

/** Seals the signing keys with a new master key, inside the transaction that does so with every stored secret. */
export async function resealSigningKeys(tx: Db, from: SecretBox, to: SecretBox): Promise<void> {
  await lockSigningKeys(tx);
  for (const row of await readSigningKeys(tx)) {
    const sealed = to.seal(row.kid, from.open(row.kid, sealedOf(row)));
    await resealSigningKey(tx, {
      kid: row.kid,
      key_id: sealed.keyId,
      nonce: sealed.nonce,
      ciphertext: sealed.ciphertext,
    });
  }
}

/**
 * Throws ConfigError if the stored signing keys need another master key than `box`, or if `box` is null. It runs at
 * start, because otherwise every token would just be invalid.
 */
export async function checkSigningKeys(db: Db, box: SecretBox | null): Promise<void> {
  for (const row of await readSigningKeys(db)) {
    if (box === null) {
      throw new ConfigError(`RELAY_MASTER_KEY is missing: stored signing keys need master key ${row.key_id}`);
    }
    try {
      openSigningKey(row, box);
    } catch (cause) {
      throw new ConfigError(`RELAY_MASTER_KEY does not open signing key ${row.kid}`, { cause });
    }
  }
}

/** Opens one stored key. Throws if another master key sealed it, or if the row was altered. */
export function openSigningKey(row: SigningKeyRow, box: SecretBox): SigningKey {
  const der = box.open(row.kid, sealedOf(row));
  return { kid: row.kid, privateKey: createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }) };
}

/** Returns the secret box, or throws 409 with a sentence: without a master key no signing key can be kept. */
export function requireBox(box: SecretBox | null): SecretBox {
  if (box === null) throw new ApiError('conflict', 'tokens need RELAY_MASTER_KEY, which is not set');
  return box;
}

async function findCurrent(tx: Db): Promise<SigningKeyRow | undefined> {
  return (await readSigningKeys(tx)).find((row) => row.state === 'current');
}

async function addSigningKey(tx: Db, box: SecretBox): Promise<SigningKey> {
  const { privateKey } = generateKeyPairSync('ed25519');
  const kid = randomUUID();
  const sealed = box.seal(kid, privateKey.export({ format: 'der', type: 'pkcs8' }));
  await insertSigningKey(tx, { kid, key_id: sealed.keyId, nonce: sealed.nonce, ciphertext: sealed.ciphertext });
  await bumpCatalogVersion(tx);
  return { kid, privateKey };
}

function sealedOf(row: SigningKeyRow) {
  return { keyId: row.key_id, nonce: row.nonce, ciphertext: row.ciphertext };
}
