import { hash } from 'node:crypto';

/** What is stored of a relay key's plaintext. */
export interface KeyDigest {
  /** sha256 hex of the whole plaintext. */
  hash: string;
  /** First 14 characters, but at most half: an `env` key may be short, and what is shown must not give it away. */
  prefix: string;
}

/** Digests a plaintext that came from the environment. Generated keys come digested from `lib/auth/keys.ts`. */
export function digestKey(plaintext: string): KeyDigest {
  return { hash: hash('sha256', plaintext, 'hex'), prefix: plaintext.slice(0, Math.min(14, plaintext.length >> 1)) };
}
