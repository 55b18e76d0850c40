import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { ILLEGAL_TRANSITION } from '../../../lib/base/modes.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { type ServerOptions, type ServerProcess, startServer } from '../../support/server.ts';
import { type SpawnedUpstream, spawnUpstream } from '../../support/spawn-upstream.ts';
import { startUpstream, type TestUpstream } from '../../support/upstream.ts';
import { catalogOf, KEYS } from './catalog.ts';

type Defer = (work: () => Promise<void>) => void;

/** The set-up of a fault test; everything in it is stopped and removed when the test is over. */
export interface Scene {
  /** A directory of the test's own. */
  dir: string;
  database(): Promise<TestDatabase>;
  /** Well-behaved, in its own process, counts `user` values. */
  countingUpstream(options?: Parameters<typeof spawnUpstream>[0]): Promise<SpawnedUpstream>;
  /** Misbehaves on command. */
  faultyUpstream(): Promise<TestUpstream>;
  /** A server of `home` (`a` unless said; a second one of the same home is the same instance). */
  start(options: StartOptions): Promise<ServerProcess>;
  defer: Defer;
}

export interface StartOptions extends Partial<Omit<ServerOptions, 'home' | 'dsn'>> {
  home?: string;
  dsn: string | null;
  upstream: { url: string };
}

/** Opens a scene. `onTestFinished` is the test context's own, so that concurrent tests keep theirs apart. */
export async function openScene(onTestFinished: (work: () => Promise<void>) => void): Promise<Scene> {
  const dir = await mkdtemp(join(tmpdir(), 'relay-fault-'));
  const ends: (() => Promise<void>)[] = [() => rm(dir, { recursive: true, force: true, maxRetries: 10 })];
  const defer: Defer = (work) => void ends.push(work);
  onTestFinished(async () => {
    for (const end of ends.reverse()) await end();
  });
  return {
    dir,
    defer,
    async database() {
      const database = await createTestDatabase();
      defer(() => database.close());
      return database;
    },
    async countingUpstream(options) {
      const upstream = await spawnUpstream({ countUsers: true, ...options });
      defer(() => upstream.stop());
      return upstream;
    },
    async faultyUpstream() {
      const upstream = await startUpstream();
      defer(() => upstream.close());
      return upstream;
    },
    async start({ home = 'a', upstream, env, ...options }) {
      const server = await startServer({
        catalog: catalogOf(upstream.url),
        payloadDir: join(dir, 'payloads'),
        waitUntilReady: false,
        ...options,
        home: join(dir, home),
        env: { ...KEYS, RELAY_BATCH_CONCURRENCY: '16', ...env },
      });
      // With an embedded Postgres a clean stop takes that one along.
      defer(async () => {
        server.signal('SIGCONT');
        server.signal(options.dsn === null ? 'SIGTERM' : 'SIGKILL');
        await server.exited;
        expect(server.log.filter(({ msg }) => msg === ILLEGAL_TRANSITION)).toEqual([]);
      });
      if (options.waitUntilReady !== false) await server.ready();
      return server;
    },
  };
}
