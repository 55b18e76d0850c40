import { pino } from 'pino';
import type { Log } from '../../lib/base/log.ts';
import { ILLEGAL_TRANSITION } from '../../lib/base/modes.ts';

/** A silent log that throws where a state machine makes a transition it does not have. */
export function strictLog(): Log {
  return pino(
    { level: 'error' },
    {
      write(line: string) {
        if (line.includes(ILLEGAL_TRANSITION)) throw new Error(line);
      },
    },
  );
}
