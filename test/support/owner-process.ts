import { createLog } from '../../lib/base/log.ts';
import { startEmbedded } from '../../lib/postgres/embedded.ts';

// The owner of a data dir as a process of its own, so that tests can kill it: `node owner-process.ts <dataDir>`. Prints
// one JSON line with the DSN when it is ready, then its log; SIGTERM stops it, a failed start ends it with status 2.

const dataDir = process.argv[2]!;
try {
  const embedded = await startEmbedded({ dataDir, log: createLog('info') });
  process.once('SIGTERM', async () => {
    await embedded.stop();
    process.exit(0);
  });
  process.stdout.write(`${JSON.stringify({ dsn: embedded.dsn })}\n`);
} catch (error) {
  process.stdout.write(`${JSON.stringify({ failed: (error as Error).message })}\n`);
  process.exit(2);
}
