import { hash } from 'node:crypto';
import { ApiError } from '../base/errors.ts';
import { digestKey, type KeyDigest } from '../catalog/relay-key.ts';

/** A new key. Its plaintext is shown once and never stored. */
export interface GeneratedKey extends KeyDigest {
  plaintext: string;
}

/**
 * Makes a fresh relay key: `sk-wr-` and 48 random bytes in base64url without padding, 70 characters in all ("Relay
 * keys" in docs/spec/gateway-rules.md). `random` must return cryptographically random bytes (`Clock.random`).
 */
export function generateKey(random: (n: number) => Buffer): GeneratedKey {
  const plaintext = `sk-wr-${random(48).toString('base64url')}`;
  return { plaintext, ...digestKey(plaintext) };
}

/** Returns the sha256 hex of the whole plaintext: it is stored, looked up, and recorded as the owner of a batch. */
export function hashKey(plaintext: string): string {
  return hash('sha256', plaintext, 'hex');
}

/** The longest time that a rotated value continues to work: 24 h ("Relay keys" in docs/spec/gateway-rules.md). */
export const MAX_GRACE_SECONDS = 86_400;

/**
 * Throws 400 for a key that cannot be rotated: a revoked one, and one whose plaintext comes from the environment
 * (`valueFrom`), which is rotated there. A disabled or expired key can be rotated and stays disabled or expired. The
 * value before the present one stops at once, even within its own grace: a key remembers one previous value.
 */
export function assertRotatable(key: { revoked: boolean; fromEnv: boolean }): void {
  if (key.revoked) throw new ApiError('invalid_value', 'a revoked key cannot be rotated');
  if (key.fromEnv) {
    throw new ApiError('invalid_value', 'a key with valueFrom cannot be rotated: change its environment variable');
  }
}
