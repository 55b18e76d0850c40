import type { Log } from '../base/log.ts';
import type { Step } from './readiness.ts';

/**
 * The order of a stop. The parts of one phase stop together; the next phase begins when all of them have stopped.
 *
 *     intake        no message comes in any more
 *     work          running items and requests end, their outcomes are recorded
 *     connections   what only the work used is closed
 *     database      the pool is closed
 *     postgres      the embedded server ends: it takes outcomes until then
 */
const STOP_PHASES = ['intake', 'work', 'connections', 'database', 'postgres'] as const;

export type StopPhase = (typeof STOP_PHASES)[number];

/** One component of the service. It is built already; this says how it starts and stops. */
export interface Part {
  /** For the log of a stop. */
  name: string;
  /** The work before the service is ready. Parts start one after the other, in the order of their list. */
  start?: Step;
  stop?: {
    phase: StopPhase;
    /** `deadlineMs`: running items may continue for this time. */
    run(deadlineMs: number): unknown;
  };
}

/** The steps of a start, in the order of the list. */
export function startSteps(parts: readonly Part[]): Step[] {
  return parts.flatMap(({ start }) => start ?? []);
}

/** Stops all parts, phase by phase. Rejects with the first failure; later phases are then left out. */
export async function stopParts(
  parts: readonly Pick<Part, 'name' | 'stop'>[],
  deadlineMs: number,
  log: Log,
): Promise<void> {
  for (const phase of STOP_PHASES) {
    await Promise.all(
      parts.map(async ({ name, stop }) => {
        if (stop?.phase !== phase) return;
        await stop.run(deadlineMs);
        log.debug({ part: name }, 'stopped');
      }),
    );
  }
}
