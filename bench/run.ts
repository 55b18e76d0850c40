import { writeFile } from 'node:fs/promises';
import { cpus, totalmem } from 'node:os';
import { parseArgs } from 'node:util';
import { benchBloat } from './bloat.ts';
import { benchCancel } from './cancel.ts';
import { benchClaim } from './claim.ts';
import { benchDrain, benchDrainAws } from './drain.ts';
import { benchFairness } from './fairness.ts';
import { benchGrowth } from './growth.ts';
import { benchHostile } from './hostile.ts';
import { benchIdle } from './idle.ts';
import { benchLimited } from './limited.ts';
import { benchLimits } from './limits.ts';
import { benchMemory } from './memory.ts';
import { benchMessageBatches } from './message-batches.ts';
import { benchOpenaiBatches } from './openai-batches.ts';
import { benchReplicas } from './replicas.ts';
import { benchRestart } from './restart.ts';
import { benchResults } from './results.ts';
import { benchSlice } from './slice.ts';
import { benchSlots } from './slots.ts';
import { benchSoak } from './soak.ts';
import { benchStart } from './start.ts';
import { benchStatus } from './status.ts';
import { benchSubmit } from './submit.ts';
import { type Bed, createBed } from './support/bed.ts';
import { type Figure, isMet } from './support/figure.ts';
import { renderFigures } from './support/table.ts';
import { benchUsage } from './usage.ts';

// `npm run bench [section...]`: runs the named sections, or all except the long ones, in turn. Prints each as a table
// and writes all figures to bench-results.json (--json elsewhere). A missed target does not fail the run, a broken
// section does.

const SECTIONS: Readonly<Record<string, (bed: Bed) => Promise<Figure[]>>> = {
  drain: benchDrain,
  'drain-aws': benchDrainAws,
  slots: benchSlots,
  replicas: benchReplicas,
  fairness: benchFairness,
  limited: benchLimited,
  'limit-decisions': () => benchLimits(),
  slice: () => benchSlice(),
  submit: benchSubmit,
  'message-batches': benchMessageBatches,
  'openai-batches': benchOpenaiBatches,
  status: benchStatus,
  results: benchResults,
  cancel: benchCancel,
  claim: benchClaim,
  usage: benchUsage,
  restart: benchRestart,
  start: benchStart,
  idle: benchIdle,
  memory: benchMemory,
  hostile: benchHostile,
  bloat: benchBloat,
  growth: benchGrowth,
  soak: benchSoak,
};

/** Half an hour and more: they run only by name. */
const LONG: ReadonlySet<string> = new Set(['growth', 'soak']);

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'string', default: 'bench-results.json' } },
});
const unknown = positionals.filter((name) => !(name in SECTIONS));
if (unknown.length > 0) {
  process.stderr.write(`No section ${unknown.join(', ')}. There are: ${Object.keys(SECTIONS).join(', ')}\n`);
  process.exit(1);
}

const machine = `${cpus().length} x ${cpus()[0]?.model ?? 'CPU'}, ${Math.round(totalmem() / 2 ** 30)} GiB, Node ${process.version}`;
process.stdout.write(`${machine}\n\n`);
const report: { section: string; seconds: number; figures: (Figure & { met: boolean | null })[]; failed?: string }[] =
  [];
const bed = await createBed();
let stopping = false;
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    if (stopping) return;
    stopping = true;
    void bed.close().finally(() => process.exit(1));
  });
}
try {
  for (const name of positionals.length > 0 ? positionals : Object.keys(SECTIONS).filter((name) => !LONG.has(name))) {
    const start = performance.now();
    let figures: Figure[] = [];
    let failed: string | undefined;
    try {
      figures = await SECTIONS[name]!(bed);
    } catch (error) {
      if (stopping) break;
      failed = error instanceof Error ? (error.stack ?? error.message) : String(error);
      process.exitCode = 1;
    }
    await bed.clear();
    const seconds = (performance.now() - start) / 1000;
    const title = `${name} (${seconds.toFixed(0)} s)`;
    process.stdout.write(
      failed === undefined ? `${renderFigures(title, figures)}\n` : `${title} FAILED: ${failed}\n\n`,
    );
    report.push({
      section: name,
      seconds,
      figures: figures.map((figure) => ({ ...figure, met: isMet(figure) })),
      ...(failed === undefined ? {} : { failed }),
    });
  }
} finally {
  if (!stopping) await bed.close();
}
await writeFile(values.json, `${JSON.stringify({ machine, at: new Date().toISOString(), report }, null, 2)}\n`);
process.stdout.write(`${values.json}\n`);
