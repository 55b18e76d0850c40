import type { Reporter, TestCase, TestModule, TestSuite, Vitest } from 'vitest/node';

/**
 * Names what was skipped at the end of a run, which the default reporter only counts: a suite that was left out whole by its
 * own name (`S3 (LocalStack, when Docker answers)`), else test by test. Silent when `-t` chose the tests.
 */
// biome-ignore lint/style/noDefaultExport: what vitest loads
export default class SkippedReporter implements Reporter {
  private chosen = false;

  onInit(vitest: Vitest): void {
    this.chosen = vitest.config.testNamePattern !== undefined;
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    if (this.chosen) return;
    const counts = new Map<string, number>();
    for (const module of modules) {
      for (const test of module.children.allTests('skipped')) {
        const name = `${module.relativeModuleId}: ${outermost(test).fullName}`;
        counts.set(name, (counts.get(name) ?? 0) + 1);
      }
    }
    for (const [name, count] of counts) process.stdout.write(`Skipped here (${count}): ${name}\n`);
  }
}

/** The widest suite around a test of which nothing ran, or the test itself. */
function outermost(test: TestCase): TestCase | TestSuite {
  let widest: TestCase | TestSuite = test;
  for (let at = test.parent; at.type === 'suite'; at = at.parent) {
    if ([...at.children.allTests()].some((one) => one.result().state !== 'skipped')) break;
    widest = at;
  }
  return widest;
}
