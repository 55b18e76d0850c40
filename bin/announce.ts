import type { Config } from '../lib/app/config.ts';
import type { App } from '../lib/app/container.ts';
import type { Server } from './serve.ts';

/** The parts of a running server that its announcement names. */
interface Announced extends Pick<Server, 'port' | 'controlPort'> {
  app: Pick<App, 'adminToken' | 'adminTokenFile' | 'catalog'>;
}

/** Returns the addresses of the service and the way to a first key, for people. Shows no secret, only its file. */
export function announcement(server: Announced, config: Pick<Config, 'host'>): string {
  const { app, port, controlPort } = server;
  const host = config.host.includes(':') ? `[${config.host}]` : config.host;
  const lines = [`Relay Batch is ready: http://${host}:${port}/v1/batches`];
  if (controlPort !== null) {
    lines.push(`Control API: http://${host}:${controlPort}/api`);
    if (app.adminTokenFile !== null) lines.push(`Its admin token is in ${app.adminTokenFile}`);
    else if (app.adminToken === null) lines.push('Set RELAY_ADMIN_TOKEN to use it.');
  }
  if (app.catalog().keys.size === 0) lines.push(...firstKey(server, host));
  return `${lines.join('\n')}\n`;
}

function firstKey({ app, controlPort }: Announced, host: string): string[] {
  if (controlPort === null || app.adminToken === null) {
    return ['There is no relay key yet: set RELAY_CATALOG to a catalogue with a Key (see docs/catalogue.md).'];
  }
  const policy = [...app.catalog().policies.values()].find(({ enabled }) => enabled);
  if (policy === undefined) {
    return ['There is no policy for a relay key yet: set RELAY_CATALOG to a catalogue (see docs/catalogue.md).'];
  }
  const token = app.adminTokenFile === null ? '$RELAY_ADMIN_TOKEN' : `$(cat ${app.adminTokenFile})`;
  return [
    'There is no relay key yet. Make a first one with:',
    `  curl -s http://${host}:${controlPort}/api/keys -H "Authorization: Bearer ${token}" \\`,
    `    -d '{"metadata":{"name":"first"},"spec":{"policy":"${policy.name}"}}'`,
  ];
}
