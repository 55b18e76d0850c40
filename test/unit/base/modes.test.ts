import { expect, test } from 'vitest';
import { createTransition, type Transitions } from '../../../lib/base/modes.ts';
import { strictLog } from '../../support/strict-log.ts';

const DOOR: Transitions<'open' | 'closed' | 'locked'> = {
  open: ['closed'],
  closed: ['open', 'locked'],
  locked: ['closed'],
};

test('a transition of the table is made without a word', () => {
  const move = createTransition('door', DOOR, strictLog());
  expect(move(move('open', 'closed'), 'locked')).toBe('locked');
});

test('one that the table does not have is logged as an error, and made all the same', () => {
  const logged: unknown[] = [];
  const log = { error: (...args: unknown[]) => void logged.push(args) };
  expect(createTransition('door', DOOR, log as never)('open', 'locked')).toBe('locked');
  expect(logged).toEqual([[{ machine: 'door', from: 'open', to: 'locked' }, 'illegal transition']]);
});

test('the log of the tests throws on it', () => {
  expect(() => createTransition('door', DOOR, strictLog())('locked', 'open')).toThrow('illegal transition');
});
