import { defineConfig } from 'vitest/config';

const SERVICES = {
  globalSetup: ['test/support/global-setup.ts'],
  testTimeout: 90_000,
  hookTimeout: 120_000,
};

// biome-ignore lint/style/noDefaultExport: what vitest reads
export default defineConfig({
  test: {
    // Each worker of an integration test drives Postgres, upstreams and the service: more than two starve each other.
    maxWorkers: 2,
    reporters: ['default', './test/support/skipped-reporter.ts'],
    projects: [
      { test: { name: 'unit', include: ['test/unit/**/*.test.ts'], testTimeout: 60_000 } },
      { test: { name: 'integration', include: ['test/integration/**/*.test.ts'], ...SERVICES } },
      // Last: nobody is rescued while Postgres is younger than a lease, and these tests need not wait for that.
      {
        test: {
          name: 'acceptance',
          include: ['test/acceptance/**/*.test.ts'],
          sequence: { groupOrder: 1 },
          ...SERVICES,
        },
      },
    ],
  },
});
