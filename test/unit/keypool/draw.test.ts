import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { orderKeys } from '../../../lib/keypool/draw.ts';
import { hostKeyOf } from '../../support/routing-catalog.ts';

const keys = ['a', 'b', 'c'].map((name) => hostKeyOf({ name, host: 'local' }));
const names = (list: readonly { name: string }[]) => list.map(({ name }) => name).join('');

describe('order of keys', () => {
  test('prioritized: the list as it is', () => {
    expect(orderKeys(keys, 'prioritized', null)).toBe(keys);
  });

  test('round-robin: from the turn on, and round', () => {
    const order = [0, 1, 2, 3, 4].map((index) => names(orderKeys(keys, 'round-robin', { index, ranking: null })));
    expect(order).toEqual(['abc', 'bca', 'cab', 'abc', 'bca']);
  });

  test('least-recently-used: from the turn on in the drawn ranking; unranked keys last', () => {
    const ranking = ['c', 'a'];
    const order = [0, 1, 2].map((index) => names(orderKeys(keys, 'least-recently-used', { index, ranking })));
    expect(order).toEqual(['cab', 'acb', 'cab']);
  });

  test('least-recently-used: a ranked key that opened since is left out', () => {
    const turn = { index: 1, ranking: ['c', 'b', 'a'] };
    expect(names(orderKeys(keys.slice(0, 2), 'least-recently-used', turn))).toBe('ab');
  });

  test('every usable key comes exactly once, whatever the turn', () => {
    const turns = fc.record({
      index: fc.integer({ min: 0, max: 2 ** 53 - 1 }),
      ranking: fc.option(fc.shuffledSubarray(['a', 'b', 'c', 'gone'])),
    });
    const strategies = fc.constantFrom('prioritized', 'round-robin', 'least-recently-used');
    fc.assert(
      fc.property(fc.subarray(keys), strategies, turns, (usable, strategy, turn) => {
        expect(names([...orderKeys(usable, strategy, turn)].sort((a, b) => (a.name < b.name ? -1 : 1)))).toBe(
          names(usable),
        );
      }),
    );
  });
});
