import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { applyCatalog } from '../../../lib/catalog/apply.ts';
import { loadCatalog } from '../../../lib/catalog/load.ts';
import { readCatalog } from '../../../lib/catalog/read.ts';
import { price } from '../../../lib/usage/cost.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { ROOT } from '../../support/root.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

test('the starter catalogue applies, and every model of it has a price', async () => {
  const source = await readCatalog([join(ROOT, 'catalog')]);
  expect(source.faults).toEqual([]);
  await applyCatalog(database.db, source, { env: {}, secretBox: null });
  const catalog = await loadCatalog(database.db, {}, null, createLog('silent'));
  expect(catalog.models.size).toBeGreaterThanOrEqual(12);
  for (const { name } of catalog.models.values()) {
    const bindings = catalog.bindings.get(name) ?? [];
    expect([name, bindings.length]).not.toEqual([name, 0]);
    for (const { pricing } of bindings) {
      const cost = price(catalog.pricings.get(pricing!), {
        input: 1_000_000,
        output: 1_000_000,
        cache_read: 1_000_000,
      });
      expect(Object.keys(cost!.breakdown).sort()).toEqual(['cache_read', 'input', 'output']);
      // An output token is dearer than one of input, and that than one from the cache: catches a slip of a column.
      const { input, output, cache_read } = cost!.breakdown;
      expect([name, output! > input! && input! > cache_read! && cache_read! > 0]).toEqual([name, true]);
    }
  }
  const haiku = catalog.pricings.get('claude-haiku-5-5');
  expect(price(haiku, { input: 100_000 })!.costNanos).toBe(10_000_000n);
  expect(price(haiku, { input: 100_001 })!.costNanos).toBe(50_000_500n);
});
