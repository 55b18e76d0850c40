import type { SQSEvent } from 'aws-lambda';
import { sleep } from '../base/clock.ts';
import type { Catalog } from '../model/catalog.ts';
import { createListener } from '../queue/postgres.ts';
import { awsOf } from './clients.ts';
import type { Foundation, WakeTarget } from './foundation.ts';
import type { Part } from './part.ts';
import type { Readiness } from './readiness.ts';

/** How often a ready replica checks whether the payload store is still the shared one. */
const STORE_CHECK_MS = 10_000;

/** The parts that watch what is outside: they exist from the beginning, and nobody waits for them. */
export function watchingParts(foundation: Foundation, readiness: Readiness, target: WakeTarget): Part[] {
  const { home, shared, worker, stopping, options } = foundation;
  const { config, log } = options;
  const listener = createListener({
    dsn: home.directDsn,
    log,
    onWake: (wake) => options.onWake(target, wake),
    onReconnect: () => {
      if (readiness.notReady() !== null) return;
      void shared.catalogCache.refresh();
      worker.wake();
    },
    onBreakers: () => void shared.pool.refresh(),
  });
  shared.catalogCache.onChange(onNewKeys(() => void shared.pool.wakeWaiting()));
  const storeWatch = watchStore(readiness.done, stopping, async () => {
    const fault = await shared.checkStore();
    readiness.degrade(fault);
    if (fault === null) worker.resume();
    else worker.pause();
  });
  const poller = config.queue === 'sqs' ? pollWhenReady(foundation, readiness, target) : null;
  return [
    { name: 'message poller', stop: { phase: 'intake', run: async () => (await poller)?.stop() } },
    { name: 'payload store watch', stop: { phase: 'work', run: () => storeWatch } },
    { name: 'listener', stop: { phase: 'connections', run: listener.stop } },
  ];
}

/** Calls `act` for a catalogue with a host key value that the one before did not have: of a start for any. */
function onNewKeys(act: () => void): (catalog: Catalog) => void {
  let known: ReadonlySet<string> = new Set();
  return (catalog) => {
    const keys = new Set([...catalog.hostKeys.values()].map(({ breakerKey }) => breakerKey));
    const isNew = [...keys].some((key) => key !== '' && !known.has(key));
    known = keys;
    if (isNew) act();
  };
}

async function pollWhenReady(
  { stopping, options }: Foundation,
  readiness: Readiness,
  target: WakeTarget,
): Promise<{ stop(): Promise<void> } | null> {
  const { config, env, log } = options;
  const { createSqsPoller } = await import('../queue/sqs.ts');
  await readiness.done.catch(() => {});
  if (stopping.aborted || readiness.notReady() !== null) return null;
  const handle = (event: SQSEvent) => options.onMessages(target, event);
  return createSqsPoller({ queueUrl: config.sqsQueueUrl!, ...awsOf(env, 'SQS'), log, handle });
}

async function watchStore(ready: Promise<void>, signal: AbortSignal, check: () => Promise<void>): Promise<void> {
  await ready.catch(() => {});
  while (!signal.aborted) {
    await sleep(STORE_CHECK_MS, signal);
    if (!signal.aborted) await check().catch(() => {});
  }
}
