import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Clock } from '../base/clock.ts';
import type { WorkerDeps } from '../worker/worker.ts';

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];
const ITEMS = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const BYTES = [1e3, 1e4, 1e5, 1e6, 4e6, 8e6, 64e6];

/** The metrics of the service; docs/operations.md documents their names. One registry per application, none global. */
export interface Metrics {
  registry: Registry;
  itemsFinal: Counter<'state'>;
  itemsReleased: Counter;
  flushItems: Histogram;
  flushBytes: Histogram;
  flushSeconds: Histogram;
  claimSeconds: Histogram;
  upstreamSeconds: Histogram<'host' | 'class'>;
  httpSeconds: Histogram<'method' | 'route' | 'status'>;
}

/** Makes the registry. `gauges` are read when the metrics are. */
export function createMetrics(gauges: {
  bodies(): number;
  running(): number;
  waiting(): number;
  committing(): number;
}): Metrics {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  const gauge = (name: string, help: string, read: () => number) =>
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(read());
      },
    });
  gauge('relay_batch_items_running', 'Items in slots of this replica.', gauges.running);
  gauge('relay_batch_queue_depth', 'Items claimed by this replica that wait for a slot.', gauges.waiting);
  gauge('relay_batch_items_committing', 'Outcomes that wait for their group commit.', gauges.committing);
  gauge('relay_batch_body_memory_bytes', 'Request bodies in memory, in bytes.', gauges.bodies);
  return {
    registry,
    itemsFinal: new Counter({
      name: 'relay_batch_items_total',
      help: 'Items made final by this replica.',
      labelNames: ['state'],
      registers,
    }),
    itemsReleased: new Counter({
      name: 'relay_batch_items_released_total',
      help: 'Items given back to wait or to run elsewhere.',
      registers,
    }),
    ...createHistograms(registry),
  };
}

type Histograms = Omit<Metrics, 'registry' | 'itemsFinal' | 'itemsReleased'>;

function createHistograms(registry: Registry): Histograms {
  const registers = [registry];
  const histogram = <Label extends string = never>(
    name: string,
    help: string,
    buckets: number[],
    labelNames: Label[] = [],
  ) => new Histogram({ name, help, buckets, labelNames, registers });
  return {
    flushItems: histogram('relay_batch_flush_items', 'Outcomes in one group commit.', ITEMS),
    flushBytes: histogram('relay_batch_flush_bytes', 'Response bytes in one segment.', BYTES),
    flushSeconds: histogram('relay_batch_flush_seconds', 'Time of one group commit, segment write included.', SECONDS),
    claimSeconds: histogram('relay_batch_claim_seconds', 'Time of one claim, planning included.', SECONDS),
    upstreamSeconds: histogram('relay_batch_upstream_seconds', 'Time of one upstream call.', SECONDS, [
      'host',
      'class',
    ]),
    httpSeconds: histogram('relay_batch_http_seconds', 'Time of one HTTP request.', SECONDS, [
      'method',
      'route',
      'status',
    ]),
  };
}

/** Returns the hooks of a worker that count its events. */
export function observeWorker(metrics: Metrics, clock: Clock): WorkerDeps['observe'] {
  return {
    claim: (seconds) => metrics.claimSeconds.observe(seconds),
    flush({ items, bytes, seconds }) {
      metrics.flushItems.observe(items);
      metrics.flushBytes.observe(bytes);
      metrics.flushSeconds.observe(seconds);
    },
    final: (state, count) => metrics.itemsFinal.inc({ state }, count),
    released: (count) => metrics.itemsReleased.inc(count),
    upstream(host, result) {
      const end = result.responseEndedAt ?? clock.now();
      metrics.upstreamSeconds.observe({ host, class: result.class }, Math.max(0, end - result.startedAt) / 1000);
    },
  };
}
