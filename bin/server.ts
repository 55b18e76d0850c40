#!/usr/bin/env node
import { loadConfig } from '../lib/config.ts';
import { ConfigError } from '../lib/errors.ts';
import { createLog } from '../lib/log.ts';
import { announce } from './announce.ts';
import { startServer } from './serve.ts';

try {
  const config = loadConfig(process.env);
  const log = createLog(config.logLevel);
  const server = await startServer(config, process.env, log);
  let signals = 0;
  const onSignal = (signal: NodeJS.Signals) => {
    if (signals++ > 0) process.exit(1); // a second signal does not wait
    log.info({ signal }, 'stopping');
    server.stop().then(() => process.exit(0));
  };
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, onSignal);
  server.app.ready.then(
    () => announce(server, config),
    async (error) => {
      process.stderr.write(`${error instanceof ConfigError ? error.message : error.stack}\n`);
      await server.stop();
      process.exit(1);
    },
  );
} catch (error) {
  process.stderr.write(`${error instanceof ConfigError ? error.message : (error as Error).stack}\n`);
  process.exit(1);
}
