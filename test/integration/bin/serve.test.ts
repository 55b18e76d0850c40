import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { startServer } from '../../../bin/serve.ts';
import { loadConfig } from '../../../lib/app/config.ts';
import { ConfigError } from '../../../lib/base/errors.ts';
import { createLog } from '../../../lib/base/log.ts';
import { createTestDatabase } from '../../support/postgres.ts';

test.each(['RELAY_PORT', 'RELAY_CONTROL_PORT'])(
  'a start on a port that is taken ends with a sentence that names %s',
  async (name) => {
    const database = await createTestDatabase();
    const home = await mkdtemp(join(tmpdir(), 'relay-serve-'));
    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    const env = {
      RELAY_PG_DSN: database.dsn,
      RELAY_DATA_DIR: join(home, 'data'),
      RELAY_BATCH_PAYLOAD_DIR: join(home, 'payloads'),
      RELAY_PORT: '0',
      RELAY_CONTROL_PORT: '0',
      [name]: String(port),
    };
    try {
      const start = startServer(loadConfig(env), env, createLog('silent'));
      await expect(start).rejects.toEqual(new ConfigError(`${name}: cannot listen on 127.0.0.1:${port}: EADDRINUSE`));
    } finally {
      taken.close();
      await database.close();
      await rm(home, { recursive: true, force: true });
    }
  },
);
