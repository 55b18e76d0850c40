import { createHash, randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ConfigError } from '../../../lib/base/errors.ts';
import { createSecretBox, parseMasterKey } from '../../../lib/catalog/secrets/secret-box.ts';

const key = randomBytes(32);
const box = createSecretBox(key);

describe('a secret box', () => {
  test('opens what it sealed, for the same row', () => {
    fc.assert(
      fc.property(fc.uuid(), fc.uint8Array({ maxLength: 300 }), (id, bytes) => {
        expect(box.open(id, box.seal(id, Buffer.from(bytes)))).toEqual(Buffer.from(bytes));
      }),
    );
  });

  test('names its key by the first 8 hex characters of its sha256', () => {
    expect(box.keyId).toBe(createHash('sha256').update(key).digest('hex').slice(0, 8));
    expect(box.seal('a', 'x').keyId).toBe(box.keyId);
  });

  test('takes a fresh nonce of 12 bytes each time', () => {
    const [a, b] = [box.seal('a', 'x'), box.seal('a', 'x')];
    expect([a.nonce.length, b.nonce.length]).toEqual([12, 12]);
    expect(a.nonce.equals(b.nonce)).toBe(false);
    expect(a.ciphertext.equals(b.ciphertext)).toBe(false);
  });

  test('does not open on another row, when a byte is changed, when it is cut, or with another key', () => {
    const sealed = box.seal('row-1', 'secret');
    expect(() => box.open('row-2', sealed)).toThrow();
    for (let i = 0; i < sealed.ciphertext.length; i++) {
      const ciphertext = Buffer.from(sealed.ciphertext);
      ciphertext[i]! ^= 1;
      expect(() => box.open('row-1', { ...sealed, ciphertext })).toThrow();
    }
    for (const length of [0, 4, 15, 16, 21]) {
      expect(() => box.open('row-1', { ...sealed, ciphertext: sealed.ciphertext.subarray(0, length) })).toThrow();
    }
    const other = createSecretBox(randomBytes(32));
    expect(() => other.open('row-1', sealed)).toThrow(`needs master key ${box.keyId}`);
    expect(() => other.open('row-1', { ...sealed, keyId: other.keyId })).toThrow();
  });
});

test('a master key is 32 bytes in base64, and a bad one is told without showing it', () => {
  expect(parseMasterKey(key.toString('base64'))).toEqual(key);
  for (const text of [
    '',
    'short',
    randomBytes(31).toString('base64'),
    randomBytes(33).toString('base64'),
    key.toString('hex'),
  ]) {
    let thrown: unknown;
    try {
      parseMasterKey(text, 'RELAY_NEW_MASTER_KEY');
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(ConfigError);
    expect((thrown as Error).message).toBe('RELAY_NEW_MASTER_KEY is not valid: it must be 32 bytes in base64');
  }
});
