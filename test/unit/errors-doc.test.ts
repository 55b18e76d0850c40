import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { API_ERRORS } from '../../lib/base/errors.ts';

const document = readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8');

test('docs/errors.md lists every code with its status and default message, and no other', () => {
  const rows = [...document.matchAll(/^\| `(\w+)` \| (\d+) \| (.+?) \| (.+) \|$/gm)];
  const listed = Object.fromEntries(
    rows.map(([, code, status, message]) => [code, { status: Number(status), message }]),
  );
  expect(listed).toEqual(API_ERRORS);
  expect(Object.keys(listed)).toEqual(Object.keys(API_ERRORS));
  expect(rows).toHaveLength(Object.keys(API_ERRORS).length);
});
