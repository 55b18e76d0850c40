import type { Config } from '../lib/app/config.ts';
import type { Server } from './serve.ts';

/** Says on standard error where the service listens and how to make a first key. Shows no secret, only its file. */
export function announce(server: Server, config: Config): void {
  const { app, port, controlPort } = server;
  const host = config.host.includes(':') ? `[${config.host}]` : config.host;
  const lines = [`Relay Batch is ready: http://${host}:${port}/v1/batches`];
  if (controlPort !== null) {
    lines.push(`Control API: http://${host}:${controlPort}/api`);
    if (app.adminTokenFile !== null) lines.push(`Its admin token is in ${app.adminTokenFile}`);
    else if (app.adminToken === null) lines.push('Set RELAY_ADMIN_TOKEN to use it.');
  }
  if (app.catalog().keys.size === 0) lines.push(...firstKey(server, host));
  process.stderr.write(`${lines.join('\n')}\n`);
}

function firstKey({ app, controlPort }: Server, host: string): string[] {
  if (controlPort === null || app.adminToken === null) {
    return ['There is no relay key yet: set RELAY_CATALOG to a catalogue with a Key (see docs/catalogue.md).'];
  }
  const token = app.adminTokenFile === null ? '$RELAY_ADMIN_TOKEN' : `$(cat ${app.adminTokenFile})`;
  return [
    'There is no relay key yet. Make a first one, after its policy (docs/catalogue.md), with:',
    `  curl -s http://${host}:${controlPort}/api/keys -H "Authorization: Bearer ${token}" \\`,
    `    -d '{"metadata":{"name":"first"},"spec":{"policy":"default"}}'`,
  ];
}
