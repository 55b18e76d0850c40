import { hash } from 'node:crypto';

/** The stored facts of a relay key's plaintext. */
export interface KeyDigest {
  /** The sha256 hex of the whole plaintext. */
  hash: string;
  /** The first 14 characters, but at most half: an `env` key may be short, and its prefix must not reveal it. */
  prefix: string;
}

/** Digests a plaintext that came from the environment. Generated keys come digested from `lib/auth/keys.ts`. */
export function digestKey(plaintext: string): KeyDigest {
  return { hash: hash('sha256', plaintext, 'hex'), prefix: plaintext.slice(0, Math.min(14, plaintext.length >> 1)) };
}
