import type { Catalog, RelayKey } from '../model/catalog.ts';

/** Why a key, or who stands behind it, is no longer good. */
export type KeyFault = 'disabled' | 'revoked' | 'expired' | 'rotated' | 'user_disabled' | 'service_account_disabled';

/** Why a token, or its user, is no longer good. */
export type TokenFault = 'expired' | 'revoked' | 'user_disabled';

/** A verdict on a credential. Time changes it only at `validUntilMs`, and only from good to bad. */
export type Verdict<Fault extends string> = { fault: Fault } | { fault: null; validUntilMs: number };

/**
 * Judges a key by its row at `nowMs` (shared time). `presentedHash` is the value that was, or is being, presented. The
 * first fault counts, in the order of behaviour section 1: disabled, revoked, expired, rotated (the value is neither
 * the present one nor the previous one within its grace), then the principal. `expiresAt`, `revokedAt` and
 * `graceUntil` hold from that very millisecond on. A principal that is gone counts as disabled: deletes of it are
 * refused while a key refers to it, so it can only be missing by a fault.
 */
export function judgeKey(key: RelayKey, presentedHash: string, catalog: Catalog, nowMs: number): Verdict<KeyFault> {
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

/** What a token says about itself, and a batch keeps of it. */
export interface TokenFacts {
  jti: string;
  userId: string;
  /** Epoch ms of `exp`. */
  expiresAt: number;
  /** The user's token version when it was issued. */
  version: number;
}

/**
 * Judges a genuine token at `nowMs` (shared time): expired, then revoked (its jti, or its version is below the user's,
 * or the user is gone), then the user. Expiry comes first because revocations are forgotten some time after it: the
 * answer must not change then. A version above the user's is good: that snapshot is merely older than the token.
 */
export function judgeToken(token: TokenFacts, catalog: Catalog, nowMs: number): Verdict<TokenFault> {
  if (token.expiresAt <= nowMs) return { fault: 'expired' };
  const user = catalog.usersById.get(token.userId);
  if (user === undefined || token.version < user.tokenVersion || catalog.revokedTokens.has(token.jti)) {
    return { fault: 'revoked' };
  }
  if (!user.enabled) return { fault: 'user_disabled' };
  return { fault: null, validUntilMs: token.expiresAt };
}
