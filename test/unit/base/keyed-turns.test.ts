import { expect, test } from 'vitest';
import { createKeyedTurns } from '../../../lib/base/keyed-turns.ts';

test('runs work of one key in order, also behind a failure, and other keys beside it', async () => {
  const turns = createKeyedTurns();
  const log: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const first = turns.run('a', async () => {
    await promise;
    log.push('first');
    throw new Error('no');
  });
  const second = turns.run('a', async () => log.push('second'));
  await turns.run('b', async () => log.push('other'));
  expect(log).toEqual(['other']);
  resolve();
  await expect(first).rejects.toThrow('no');
  await second;
  expect(log).toEqual(['other', 'first', 'second']);
});
