import { expect, test } from 'vitest';
import { type Part, type StopPhase, startSteps, stopParts } from '../../../lib/app/part.ts';
import { createLog } from '../../../lib/base/log.ts';

const log = createLog('fatal');

/** A part that stops on demand, and notes when the stop began and when it ended. */
function scripted(name: string, phase: StopPhase, events: string[]): { part: Part; letGo: () => void } {
  const { promise, resolve } = Promise.withResolvers<void>();
  const run = async (deadlineMs: number) => {
    events.push(`${name} asked, ${deadlineMs} ms`);
    await promise;
    events.push(`${name} stopped`);
  };
  return { part: { name, stop: { phase, run } }, letGo: resolve };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test('parts of one phase stop together, the next phase begins when the last of them has stopped', async () => {
  const events: string[] = [];
  const database = scripted('database', 'database', events);
  const worker = scripted('worker', 'work', events);
  const sweeper = scripted('sweeper', 'work', events);
  const parts = [database.part, { name: 'catalogue' }, worker.part, sweeper.part];
  const stopped = stopParts(parts, 50, log);
  await settled();
  expect(events).toEqual(['worker asked, 50 ms', 'sweeper asked, 50 ms']);
  sweeper.letGo();
  await settled();
  expect(events.slice(2)).toEqual(['sweeper stopped']);
  worker.letGo();
  await settled();
  expect(events.slice(3)).toEqual(['worker stopped', 'database asked, 50 ms']);
  database.letGo();
  await stopped;
  expect(events.slice(5)).toEqual(['database stopped']);
});

test('phases stop in their order, whatever the order of the list', async () => {
  const order: StopPhase[] = [];
  const phases: StopPhase[] = ['postgres', 'connections', 'intake', 'database', 'work'];
  const parts = phases.map((phase) => ({ name: phase, stop: { phase, run: () => order.push(phase) } }));
  await stopParts(parts, 0, log);
  expect(order).toEqual(['intake', 'work', 'connections', 'database', 'postgres']);
});

test('a part that cannot stop ends the stop with its failure', async () => {
  const order: string[] = [];
  const fails = async () => {
    throw new Error('still busy');
  };
  const parts: Part[] = [
    { name: 'postgres', stop: { phase: 'postgres', run: () => order.push('postgres') } },
    { name: 'worker', stop: { phase: 'work', run: fails } },
  ];
  await expect(stopParts(parts, 0, log)).rejects.toThrow('still busy');
  expect(order).toEqual([]);
});

test('the steps of a start are those of the parts that have one, in the order of the list', () => {
  const step = (waiting: string) => ({ waiting, run: async () => null });
  const parts: Part[] = [
    { name: 'database', start: step('first') },
    { name: 'listener' },
    { name: 'worker', start: step('second') },
  ];
  expect(startSteps(parts).map(({ waiting }) => waiting)).toEqual(['first', 'second']);
});
