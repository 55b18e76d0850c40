import { DEMO_UPSTREAM, startDemoUpstream } from './upstream.ts';

// The demo upstream by itself, where demo/catalog looks for it: `npx node demo/start-upstream.ts [port]`. Ctrl-C ends it.

const port = Number(process.argv[2] ?? 9000);
await startDemoUpstream({ ...DEMO_UPSTREAM, port });
process.stderr.write(`The demo upstream listens on http://127.0.0.1:${port}\n`);
