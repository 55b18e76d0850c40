import type { Catalog, RelayKey } from '../model/catalog.ts';

/** The reasons why a key, or its principal, is no longer valid. */
export type KeyFault = 'disabled' | 'revoked' | 'expired' | 'rotated' | 'user_disabled' | 'service_account_disabled';

/** The reasons why a token, or its user, is no longer valid. */
export type TokenFault = 'expired' | 'revoked' | 'user_disabled';

/** A verdict on a credential. Time changes it only at `validUntilMs`, and only from valid to invalid. */
export type CredentialVerdict<Fault extends string> = { fault: Fault } | { fault: null; validUntilMs: number };

/**
 * Judges a key by its row at `nowMs` (shared time). `presentedHash` is the hash of the presented value. The first fault
 * counts, in the order of "Authentication failures" in docs/spec/gateway-rules.md: disabled, revoked, expired, rotated,
 * then the principal. A key is rotated if the value is neither the present one nor the previous one within its grace.
 * `expiresAt`, `revokedAt` and `graceUntil` hold from that very millisecond on. A principal that does not exist counts
 * as disabled: it cannot be deleted while a key refers to it, so only a fault can make it missing.
 */
export function judgeKey(
  key: RelayKey,
  presentedHash: string,
  catalog: Catalog,
  nowMs: number,
): CredentialVerdict<KeyFault> {
  if (!key.enabled) return { fault: 'disabled' };
  if (key.revokedAt !== undefined) return { fault: 'revoked' };
  if (key.expiresAt !== undefined && key.expiresAt <= nowMs) return { fault: 'expired' };
  let validUntilMs = key.expiresAt ?? Number.POSITIVE_INFINITY;
  if (presentedHash !== key.hash) {
    const graceUntil = presentedHash === key.previousHash ? (key.graceUntil ?? 0) : 0;
    if (graceUntil <= nowMs) return { fault: 'rotated' };
    validUntilMs = Math.min(validUntilMs, graceUntil);
  }
  if (key.principal?.kind === 'user' && !catalog.users.get(key.principal.name)?.enabled) {
    return { fault: 'user_disabled' };
  }
  if (key.principal?.kind === 'serviceaccount' && !catalog.serviceAccounts.get(key.principal.name)?.enabled) {
    return { fault: 'service_account_disabled' };
  }
  return { fault: null, validUntilMs };
}

/** The facts of a token that a batch records. */
export interface TokenFacts {
  jti: string;
  userId: string;
  /** The `exp` claim in epoch ms. */
  expiresAt: number;
  /** The user's token version when the token was issued. */
  version: number;
}

/**
 * Judges a genuine token at `nowMs` (shared time): expired, then revoked, then the user. A token is revoked by its jti,
 * by a version below the user's, or if the user was deleted. Expiry comes first so that the answer stays when the
 * record of a revocation is deleted later. A version above the user's is valid: that catalogue is older than the token.
 */
export function judgeToken(token: TokenFacts, catalog: Catalog, nowMs: number): CredentialVerdict<TokenFault> {
  if (token.expiresAt <= nowMs) return { fault: 'expired' };
  const user = catalog.usersById.get(token.userId);
  if (user === undefined || token.version < user.tokenVersion || catalog.revokedTokens.has(token.jti)) {
    return { fault: 'revoked' };
  }
  if (!user.enabled) return { fault: 'user_disabled' };
  return { fault: null, validUntilMs: token.expiresAt };
}
