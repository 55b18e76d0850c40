import { startServer } from '../../bin/serve.ts';
import { loadConfig } from '../../lib/app/config.ts';
import { createLog } from '../../lib/base/log.ts';
import { PERIODS } from '../../lib/worker/periods.ts';

// The server, with periods of worker and lease that are a fifth of the service's own: lost workers are found in seconds.
// They are no setting of the service, so a program of the tests passes them. It knows no signals: tests kill it.

const { leaseSeconds, tickMs, heartbeatBusyMs, heartbeatIdleMs, heartbeatWithinMs } = PERIODS;
const { stopClaimingMs, giveUpMs, noRescueMs, doubtMs } = PERIODS;

const config = loadConfig(process.env);
await startServer(config, process.env, createLog(config.logLevel), {
  ...PERIODS,
  leaseSeconds: leaseSeconds / 5,
  tickMs: tickMs / 5,
  heartbeatBusyMs: heartbeatBusyMs / 5,
  heartbeatIdleMs: heartbeatIdleMs / 5,
  heartbeatWithinMs: heartbeatWithinMs / 5,
  stopClaimingMs: stopClaimingMs / 5,
  giveUpMs: giveUpMs / 5,
  noRescueMs: noRescueMs / 5,
  doubtMs: doubtMs / 5,
});
