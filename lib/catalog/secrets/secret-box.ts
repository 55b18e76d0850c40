import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto';
import { ConfigError } from '../../base/errors.ts';

/** An encrypted value as it is stored. `ciphertext` ends in the 16-byte tag. */
export interface Sealed {
  /** Which master key opens it: the first 8 hex characters of its sha256. */
  keyId: string;
  /** 12 random bytes, never used twice. */
  nonce: Buffer;
  ciphertext: Buffer;
}

/** Encrypts small secrets (host keys, signing keys) under one master key. */
export interface SecretBox {
  keyId: string;
  /** Encrypts `plaintext` for the row `id`. */
  seal(id: string, plaintext: Buffer | string): Sealed;
  /** The plaintext. Throws when another master key sealed it, when it was altered, or moved to another row. */
  open(id: string, sealed: Sealed): Buffer;
}

const TAG_BYTES = 16;

/**
 * AES-256-GCM with the row's id as additional data ("Host key values" in docs/spec/gateway-rules.md), so that a
 * ciphertext copied onto another row does not open. `masterKey` must be 32 bytes.
 */
export function createSecretBox(masterKey: Buffer, random: (n: number) => Buffer = randomBytes): SecretBox {
  if (masterKey.length !== 32) throw new ConfigError('RELAY_MASTER_KEY is not valid: it must be 32 bytes in base64');
  const keyId = createHash('sha256').update(masterKey).digest('hex').slice(0, 8);
  return {
    keyId,
    seal(id, plaintext) {
      const nonce = random(12);
      const cipher = createCipheriv('aes-256-gcm', masterKey, nonce).setAAD(Buffer.from(id));
      const ciphertext = Buffer.concat([cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
      return { keyId, nonce, ciphertext };
    },
    open(id, sealed) {
      if (sealed.keyId !== keyId) {
        throw new Error(`the secret needs master key ${sealed.keyId}, RELAY_MASTER_KEY is ${keyId}`);
      }
      const end = sealed.ciphertext.length - TAG_BYTES;
      const decipher = createDecipheriv('aes-256-gcm', masterKey, sealed.nonce, { authTagLength: TAG_BYTES });
      decipher.setAAD(Buffer.from(id)).setAuthTag(sealed.ciphertext.subarray(end));
      return Buffer.concat([decipher.update(sealed.ciphertext.subarray(0, end)), decipher.final()]);
    },
  };
}

/** The master key of `RELAY_MASTER_KEY`: 32 bytes in base64. Throws ConfigError naming `variable`, never the value. */
export function parseMasterKey(text: string, variable = 'RELAY_MASTER_KEY'): Buffer {
  const key = Buffer.from(text, 'base64');
  if (!/^[A-Za-z0-9+/]{43}=$/.test(text) || key.length !== 32) {
    throw new ConfigError(`${variable} is not valid: it must be 32 bytes in base64`);
  }
  return key;
}
