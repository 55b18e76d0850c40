import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { API_ERRORS } from '../../../lib/base/errors.ts';
import { ROOT } from '../../support/root.ts';

const document = readFileSync(join(ROOT, 'docs/errors.md'), 'utf8');

test('docs/errors.md lists every code with its status and default message, and no other', () => {
  const rows = [...document.matchAll(/^\| `(\w+)` \| (\d+) \| (.+?) \| (.+) \|$/gm)];
  const listed = Object.fromEntries(
    rows.map(([, code, status, message]) => [code, { status: Number(status), message }]),
  );
  expect(listed).toEqual(API_ERRORS);
  expect(Object.keys(listed)).toEqual(Object.keys(API_ERRORS));
  expect(rows).toHaveLength(Object.keys(API_ERRORS).length);
});
