import type { Log } from './log.ts';

/** For each mode of a machine, the modes that may follow it. */
export type Transitions<Mode extends string> = Readonly<Record<Mode, readonly Mode[]>>;

/**
 * Logged for a transition that a machine does not have.
 *
 * @internal Exported for the tests, which look for it.
 */
export const ILLEGAL_TRANSITION = 'illegal transition';

/**
 * Asserts the transitions of a machine: the function returns `to` and its caller keeps it as the mode.
 *
 * A transition that the table does not have is a defect of ours. It is logged as an error and made all the same: the
 * process continues, and the guards in SQL still hold. Tests pass a log that throws on it.
 */
export function createTransition<Mode extends string>(
  machine: string,
  transitions: Transitions<Mode>,
  log: Pick<Log, 'error'>,
): (from: Mode, to: Mode) => Mode {
  return (from, to) => {
    if (!transitions[from].includes(to)) log.error({ machine, from, to }, ILLEGAL_TRANSITION);
    return to;
  };
}
