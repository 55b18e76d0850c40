import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createMetrics } from '../../../lib/app/metrics.ts';
import { ROOT } from '../../support/root.ts';

const doc = readFileSync(join(ROOT, 'docs/operations.md'), 'utf8');

test('docs/operations.md lists every metric of our own with its type, and no other', () => {
  const zero = () => 0;
  const { registry } = createMetrics({ bodies: zero, running: zero, waiting: zero, committing: zero });
  const own = registry.getMetricsAsArray().filter(({ name }) => name.startsWith('relay_batch_'));
  const registered = own.map((metric) => `${metric.name} ${String(metric.type)}`);
  const listed = [...doc.matchAll(/^\| `(relay_batch_\w+)` \| (\w+) \|/gm)].map(([, name, type]) => `${name} ${type}`);
  expect(listed.sort()).toEqual(registered.sort());
});

test('docs/operations.md quotes log lines that the code writes', () => {
  const quoted = ['group commit waits for the payload store', 'group commit waits for the database', 'lease lost'];
  quoted.push('items of lost workers taken back', 'one outcome is refused by the database');
  const code = ['commit-group', 'lease/lease', 'lease/rescue'].map((name) =>
    readFileSync(join(ROOT, `lib/worker/${name}.ts`), 'utf8'),
  );
  for (const line of quoted) {
    expect(doc).toContain(`\`${line}\``);
    expect(
      code.some((text) => text.includes(line)),
      line,
    ).toBe(true);
  }
});
