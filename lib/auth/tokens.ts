import { randomUUID } from 'node:crypto';
import { SignJWT } from 'jose';
import { bumpCatalogVersion } from '../catalog/catalog-state.sql.ts';
import type { SecretBox } from '../catalog/secrets/secret-box.ts';
import type { Database } from '../db/database.ts';
import { currentSigningKey } from './signing-keys.ts';
import { insertToken, markTokenRevoked, raiseUserTokenVersion, readIssueFacts } from './tokens.sql.ts';

/** The longest life of a token: 30 days ("Inference tokens" in docs/spec/gateway-rules.md). */
export const MAX_TOKEN_TTL_SECONDS = 2_592_000;

export interface TokenRequest {
  userId: string;
  /** The project whose policy governs the token. Null without one: the token can then only read. */
  projectId: string | null;
  /** Whole seconds, 1..2592000. */
  ttlSeconds: number;
}

export interface IssuedToken {
  token: string;
  jti: string;
  /** Epoch ms, a whole second. */
  expiresAt: number;
}

/**
 * Signs an inference token with the current key and records its jti. `exp` counts from the database's clock, rounded up
 * to a whole second: the token lives `ttlSeconds` and a part of one more. The caller has checked the request.
 */
export async function issueToken(db: Database, box: SecretBox, request: TokenRequest): Promise<IssuedToken> {
  return db.transaction(async (tx) => {
    const key = await currentSigningKey(tx, box);
    const { version, now_ms } = await readIssueFacts(tx, request.userId);
    const exp = Math.ceil(now_ms / 1000) + request.ttlSeconds;
    const jti = randomUUID();
    await insertToken(tx, jti, request.userId, exp * 1000);
    const token = await new SignJWT({ ver: version, ...(request.projectId === null ? {} : { prj: request.projectId }) })
      .setProtectedHeader({ alg: 'EdDSA', kid: key.kid, typ: 'JWT' })
      .setIssuer('relay')
      .setSubject(request.userId)
      .setJti(jti)
      .setIssuedAt(Math.floor(now_ms / 1000))
      .setExpirationTime(exp)
      .sign(key.privateKey);
    return { token, jti, expiresAt: exp * 1000 };
  });
}

/**
 * Revokes one token on every replica within a second. A repeat also returns true. Returns false if no such token was
 * issued, or if it expired over an hour ago and was deleted. `jti` must be a UUID.
 */
export async function revokeToken(db: Database, jti: string): Promise<boolean> {
  return db.transaction(async (tx) => {
    const result = await markTokenRevoked(tx, jti);
    if (result === 'revoked') await bumpCatalogVersion(tx);
    return result !== 'unknown';
  });
}

/**
 * Revokes every token issued to the user so far, on every replica within a second, and returns the new version. Throws
 * SQLSTATE 23503 for a user that is not stored.
 */
export async function revokeUserTokens(db: Database, userId: string): Promise<number> {
  return db.transaction(async (tx) => {
    const version = await raiseUserTokenVersion(tx, userId);
    await bumpCatalogVersion(tx);
    return version;
  });
}
