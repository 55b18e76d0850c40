import { expect, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { createCatalogCache } from '../../../lib/catalog/catalog-cache.ts';
import type { Catalog } from '../../../lib/model/catalog.ts';

const log = createLog('silent');
const version = (n: number) => ({ version: n }) as Catalog;

/** Loads that end when the test says so, in the order in which they were begun. */
function controlled() {
  const loads: { resolve(n: number): void; reject(error: Error): void }[] = [];
  const load = () =>
    new Promise<Catalog>((resolve, reject) => loads.push({ resolve: (n) => resolve(version(n)), reject }));
  return { loads, snapshot: createCatalogCache({ load, log }) };
}
const settled = async () => {
  for (let i = 0; i < 10; i++) await Promise.resolve();
};

test('is not ready before the first load', async () => {
  const { loads, snapshot } = controlled();
  expect(() => snapshot.current()).toThrow(expect.objectContaining({ code: 'not_ready' }));
  const refreshed = snapshot.refresh();
  loads[0]!.resolve(1);
  await refreshed;
  expect(snapshot.current().version).toBe(1);
});

test('a refresh during a load is answered by one more load, shared by all who came meanwhile', async () => {
  const { loads, snapshot } = controlled();
  const first = snapshot.refresh();
  const later = [snapshot.refresh(), snapshot.refresh(), snapshot.refresh()];
  expect(loads).toHaveLength(1);
  loads[0]!.resolve(1);
  await first;
  await settled();
  expect(loads).toHaveLength(2);
  loads[1]!.resolve(2);
  await Promise.all(later);
  expect([loads.length, snapshot.current().version]).toEqual([2, 2]);
});

test('an older or equal version never replaces a newer one', async () => {
  const { loads, snapshot } = controlled();
  const seen: number[] = [];
  snapshot.onChange((catalog) => seen.push(catalog.version));
  for (const n of [5, 4, 5, 6]) {
    const refreshed = snapshot.refresh();
    loads.at(-1)!.resolve(n);
    await refreshed;
  }
  expect(seen).toEqual([5, 6]);
});

test('a failed load keeps the old catalogue, rejects nobody, and the next one works', async () => {
  const { loads, snapshot } = controlled();
  for (const step of [1, 'fail', 2] as const) {
    const refreshed = snapshot.refresh();
    if (step === 'fail') loads.at(-1)!.reject(new Error('away'));
    else loads.at(-1)!.resolve(step);
    await refreshed;
    expect(snapshot.current().version).toBe(step === 2 ? 2 : 1);
  }
});

test('refreshIfNewer loads only for a newer version, and again when the load under way was too early', async () => {
  const { loads, snapshot } = controlled();
  const first = snapshot.refresh();
  loads[0]!.resolve(3);
  await first;
  await snapshot.refreshIfNewer(3);
  await snapshot.refreshIfNewer(2);
  expect(loads).toHaveLength(1);

  const early = snapshot.refresh();
  const wanted = snapshot.refreshIfNewer(5);
  loads[1]!.resolve(4);
  await early;
  await settled();
  expect(loads).toHaveLength(3);
  loads[2]!.resolve(5);
  await wanted;
  expect(snapshot.current().version).toBe(5);

  const lost = snapshot.refreshIfNewer(6);
  await settled();
  loads[3]!.reject(new Error('away'));
  await lost;
  expect([loads.length, snapshot.current().version]).toEqual([4, 5]);
});

test('a listener that was taken off is not called any more', async () => {
  const { loads, snapshot } = controlled();
  const seen: number[] = [];
  const off = snapshot.onChange((catalog) => seen.push(catalog.version));
  for (const n of [1, 2]) {
    const refreshed = snapshot.refresh();
    loads.at(-1)!.resolve(n);
    await refreshed;
    off();
  }
  expect(seen).toEqual([1]);
});
