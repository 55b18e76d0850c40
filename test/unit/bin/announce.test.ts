import { expect, test } from 'vitest';
import { announcement } from '../../../bin/announce.ts';
import { type CatalogSketch, catalogOf } from '../../support/routing-catalog.ts';

/** The announcement of a server with a generated admin token and this catalogue, which has no keys. */
const announced = (sketch: CatalogSketch) => {
  const app = { adminToken: 'secret', adminTokenFile: 'relay-data/admin-token', catalog: () => catalogOf(sketch) };
  return announcement({ app, port: 1, controlPort: 2 }, { host: '127.0.0.1' });
};

test('names a policy that exists in the command for a first key', () => {
  const text = announced({ policies: [{ name: 'old', enabled: false }, { name: 'starter' }] });
  expect(text).toContain('{"policy":"starter"}');
  expect(text).not.toContain('secret');
});

test('asks for a catalogue when no policy could govern a key', () => {
  const text = announced({ policies: [] });
  expect(text).toContain('set RELAY_CATALOG');
  expect(text).not.toContain('"policy"');
});
