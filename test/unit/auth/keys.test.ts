import { createHash, randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { assertRotatable, generateKey, hashKey } from '../../../lib/auth/keys.ts';

describe('a generated relay key', () => {
  test('is sk-wr- and the unpadded base64url of the very 48 random bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 48, maxLength: 48 }), (bytes) => {
        const { plaintext } = generateKey((n) => Buffer.from(bytes.subarray(0, n)));
        expect(plaintext).toMatch(/^sk-wr-[A-Za-z0-9_-]{64}$/);
        expect(Buffer.from(plaintext.slice(6), 'base64url').equals(bytes)).toBe(true);
      }),
    );
  });

  test('asks for 48 bytes, no more and no less', () => {
    const asked: number[] = [];
    generateKey((n) => {
      asked.push(n);
      return randomBytes(n);
    });
    expect(asked).toEqual([48]);
  });

  test('is stored as the sha256 hex of the whole plaintext and its first 14 characters', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 48, maxLength: 48 }), (bytes) => {
        const key = generateKey(() => Buffer.from(bytes));
        expect(key.hash).toBe(createHash('sha256').update(key.plaintext, 'utf8').digest('hex'));
        expect(key.prefix).toBe(key.plaintext.slice(0, 14));
      }),
    );
  });
});

test('hashKey takes the whole plaintext, as UTF-8', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme' }), (text) => {
      expect(hashKey(text)).toBe(createHash('sha256').update(text, 'utf8').digest('hex'));
    }),
  );
});

describe('rotation', () => {
  test('of a revoked key is refused with 400', () => {
    expect(() => assertRotatable({ revoked: true, fromEnv: false })).toThrow(
      expect.objectContaining({ status: 400, message: 'a revoked key cannot be rotated' }),
    );
  });

  test('of a key from the environment is refused with 400', () => {
    expect(() => assertRotatable({ revoked: false, fromEnv: true })).toThrow(
      expect.objectContaining({ status: 400, message: expect.stringContaining('valueFrom') }),
    );
  });

  test('of any other key is allowed', () => {
    expect(() => assertRotatable({ revoked: false, fromEnv: false })).not.toThrow();
  });
});
