import { expect, test } from 'vitest';
import type { ApiHandler } from '../../../lib/http/event.ts';
import { bindRoutes, createMatcher, NATIVE_ROUTES, type Route } from '../../../lib/http/routes.ts';

const run: ApiHandler = async () => ({ statusCode: 200, headers: {} });
const handlers = Object.fromEntries(NATIVE_ROUTES.map(({ handler }) => [handler, run]));
const match = createMatcher(bindRoutes(NATIVE_ROUTES, handlers));

test('finds each native route and its parameters', () => {
  for (const { method, pattern } of NATIVE_ROUTES) {
    const found = match(method, pattern.replace('{id}', 'x%2Fy'));
    expect(found).toMatchObject({
      kind: 'found',
      route: { method, pattern },
      parameters: pattern.includes('{id}') ? { id: 'x/y' } : {},
    });
  }
  expect(match('HEAD', '/healthz')).toMatchObject({ kind: 'found', route: { method: 'GET' } });
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
  const table: Route[] = [
    { method: 'GET', pattern: '/things/{id}', handler: 'any' },
    { method: 'GET', pattern: '/things/special', handler: 'special' },
  ];
  const find = createMatcher(bindRoutes(table, { any: run, special: run }));
  expect(find('GET', '/things/special')).toMatchObject({ route: { pattern: '/things/special' } });
  expect(find('GET', '/things/other')).toMatchObject({ parameters: { id: 'other' } });
});

test('refuses a table that names a handler which is not there', () => {
  expect(() => bindRoutes(NATIVE_ROUTES, {})).toThrow('route GET /healthz has no handler "health"');
});
