import { DEMO_UPSTREAM, startDemoUpstream } from './upstream.ts';

// `npm run demo:upstream`: the demo upstream by itself. It listens on the port that demo/catalog names, or on
// DEMO_UPSTREAM_PORT. Ctrl-C ends it.

const port = Number(process.env.DEMO_UPSTREAM_PORT ?? 9000);
await startDemoUpstream({ ...DEMO_UPSTREAM, port });
process.stderr.write(`The demo upstream listens on http://127.0.0.1:${port}\n`);
