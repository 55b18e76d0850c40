import { describe, expect, test } from 'vitest';
import { CONTROL_ENDPOINTS } from '../../../handlers/control.ts';
import { INFERENCE_ENDPOINTS } from '../../../handlers/inference.ts';
import type { ApiHandler } from '../../../lib/http/event.ts';
import { type BoundRoute, createMatcher, unknownPath } from '../../../lib/http/routes.ts';

const run: ApiHandler = async () => ({ statusCode: 200, headers: {} });
const PORTS: [name: string, routes: BoundRoute[]][] = [
  ['inference', INFERENCE_ENDPOINTS.map((endpoint) => ({ ...endpoint, run }))],
  ['control', CONTROL_ENDPOINTS.map((endpoint) => ({ ...endpoint, run }))],
];
const match = createMatcher(PORTS[0]![1]);

describe.each(PORTS)('the %s port', (_, routes) => {
  test('finds each of its routes with its parameters', () => {
    const find = createMatcher(routes);
    for (const { method, pattern } of routes) {
      const names = [...pattern.matchAll(/{(\w+)}/g)].map((found) => found[1]!);
      expect(find(method, pattern.replaceAll(/{\w+}/g, 'x%2Fy'))).toMatchObject({
        kind: 'found',
        route: { method, pattern },
        parameters: Object.fromEntries(names.map((name) => [name, 'x/y'])),
      });
    }
    expect(find('HEAD', '/healthz')).toMatchObject({ kind: 'found', route: { method: 'GET' } });
  });

  test('has no route twice', () => {
    const keys = routes.map(({ method, pattern }) => `${method} ${pattern}`);
    expect(keys.filter((key, i) => keys.indexOf(key) !== i)).toEqual([]);
  });
});

test.each(['', '/', '/v1', '/v1/batches/', '/v1/batches/x/', '/v1/batches//results', '/v1/batches/%', '/V1/batches'])(
  'knows no path "%s"',
  (path) => {
    expect(match('GET', path)).toEqual({ kind: 'unknown' });
  },
);

test('lists the methods of a known path', () => {
  expect(match('PUT', '/v1/batches')).toEqual({
    kind: 'method',
    pattern: '/v1/batches',
    allow: 'POST, GET, HEAD, OPTIONS',
  });
});

test('prefers a literal segment to a parameter, whatever the order of the table', () => {
  const find = createMatcher([
    { method: 'GET', pattern: '/things/{id}', run },
    { method: 'GET', pattern: '/things/special', run },
  ]);
  expect(find('GET', '/things/special')).toMatchObject({ route: { pattern: '/things/special' } });
  expect(find('GET', '/things/other')).toMatchObject({ parameters: { id: 'other' } });
});

test.each([
  ['/files', 'not found: the base URL must end in /v1'],
  ['/files/file-1/content', 'not found: the base URL must end in /v1'],
  ['/batches', 'not found: the base URL must end in /v1'],
  ['/messages/batches', 'not found: the base URL must end in /v1'],
  ['/anthropic/messages/batches', 'not found: the base URL must end in /v1'],
  ['/v1/v1/messages/batches', 'not found: the base URL must not end in /v1'],
  ['/openai/v1/v1/files', 'not found: the base URL must not end in /v1'],
  ['/filesystem', 'not found'],
  ['/v1/nothing', 'not found'],
])('says of %s: %s', (path, message) => {
  expect(match('GET', path)).toEqual({ kind: 'unknown' });
  expect(unknownPath(path).message).toBe(message);
});

test.each(['/openai/files', '/openai/files/{id}/content', '/openai/batches', '/openai/batches/{id}/cancel'])(
  "serves %s, where Azure's clients look",
  (pattern) => {
    const method = pattern.endsWith('cancel') ? 'POST' : 'GET';
    expect(match(method, pattern.replace('{id}', 'x'))).toMatchObject({ kind: 'found', route: { pattern } });
  },
);
