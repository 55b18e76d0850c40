import { expect, test } from 'vitest';
import { PERIODS } from '../../../lib/worker/periods.ts';

test('a worker that is cut off stops to claim, and then gives up, before another one may take its items', () => {
  const { heartbeatBusyMs, heartbeatIdleMs, stopClaimingMs, giveUpMs, leaseSeconds } = PERIODS;
  expect(heartbeatBusyMs).toBeLessThan(heartbeatIdleMs);
  expect(heartbeatIdleMs).toBeLessThan(stopClaimingMs);
  expect(stopClaimingMs).toBeLessThan(giveUpMs);
  expect(giveUpMs).toBeLessThanOrEqual(leaseSeconds * 1000);
});

test('a heartbeat without an answer leaves time for another one within the lease', () => {
  const { heartbeatIdleMs, heartbeatWithinMs, tickMs, leaseSeconds } = PERIODS;
  expect(heartbeatIdleMs + heartbeatWithinMs + tickMs).toBeLessThan(leaseSeconds * 1000);
});
