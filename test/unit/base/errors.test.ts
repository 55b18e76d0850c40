import fc from 'fast-check';
import { expect, test } from 'vitest';
import { isUuid, sleep, uuidv7, uuidv7Time } from '../../../lib/base/clock.ts';
import { API_ERRORS, ApiError, cutText, reasonOf } from '../../../lib/base/errors.ts';

test('cut text holds no control character, no NUL and no lone surrogate, and is what it was without them', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 300 }), fc.nat(200), (text, max) => {
      const cut = cutText(text, max);
      // biome-ignore lint/suspicious/noControlCharactersInRegex: that is what it is about
      expect(cut).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
      expect(cut.isWellFormed()).toBe(true);
      const taken = [...text].slice(0, max);
      const escaped = taken.map((char) =>
        /[\p{Cc}\p{Cs}]/u.test(char) ? `\\u${char.codePointAt(0)!.toString(16).padStart(4, '0')}` : char,
      );
      expect(cut).toBe(escaped.join(''));
    }),
  );
});

test('cuts at 128 characters and not inside of one', () => {
  expect(cutText('x'.repeat(129))).toBe('x'.repeat(128));
  expect(cutText('😀'.repeat(129))).toBe('😀'.repeat(128));
  expect(cutText('a\u0000b\ud800\n')).toBe('a\\u0000b\\ud800\\u000a');
  expect(cutText('\u2028 é')).toBe('\u2028 é');
});

test('an API error has the status and the text of its code unless it brings its own text', () => {
  for (const [code, { status, message }] of Object.entries(API_ERRORS)) {
    const error = new ApiError(code as keyof typeof API_ERRORS);
    expect([error.status, error.message, error.param, error.headers]).toEqual([status, message, null, {}]);
  }
  const cause = new Error('why');
  const own = new ApiError('invalid_value', 'limit must be 1', { param: 'limit', headers: { allow: 'GET' }, cause });
  expect(own).toMatchObject({ message: 'limit must be 1', param: 'limit', headers: { allow: 'GET' }, cause });
});

test('gives the reason of whatever was thrown', () => {
  expect([reasonOf(new Error('a')), reasonOf('b'), reasonOf(undefined)]).toEqual(['a', 'b', 'undefined']);
});

test('ids are UUIDv7 whose order is that of their milliseconds', () => {
  fc.assert(
    fc.property(fc.nat(2 ** 47), fc.nat(2 ** 47), (a, b) => {
      const [first, second] = [uuidv7(a), uuidv7(b)];
      expect(isUuid(first)).toBe(true);
      expect(first).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
      expect([uuidv7Time(first), uuidv7Time(second)]).toEqual([a, b]);
      if (a !== b) expect(first < second).toBe(a < b);
    }),
  );
});

test('ids of one millisecond differ, in every random bit', () => {
  const ids = Array.from({ length: 5000 }, () => uuidv7(1));
  expect(new Set(ids).size).toBe(5000);
  for (const at of [15, 16, 17, 19, 20, 21, 22, ...Array.from({ length: 12 }, (_, i) => 24 + i)]) {
    expect(new Set(ids.map((id) => id[at])).size).toBe(at === 19 ? 4 : 16);
  }
});

test('an id is a lower-case UUID and nothing else', () => {
  const id = uuidv7();
  for (const other of [id.toUpperCase(), `${id} `, id.slice(1), id.replaceAll('-', ''), '', `${id}\n`]) {
    expect(isUuid(other)).toBe(other === id);
  }
});

test('a sleep ends at once when it is told to, before it or in it, and leaves nothing behind', async () => {
  const abort = new AbortController();
  const asleep = sleep(3_600_000, abort.signal);
  abort.abort();
  await asleep;
  await sleep(3_600_000, abort.signal);
  await sleep(0);
});
