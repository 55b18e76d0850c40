import type { AddressInfo } from 'node:net';
import { describe, expect, test } from 'vitest';
import { DEMO_UPSTREAM, startDemoUpstream } from '../../../demo/upstream.ts';
import { systemClock } from '../../../lib/base/clock.ts';
import type { CallRequest } from '../../../lib/upstream/call-result.ts';
import { createUpstreamClient } from '../../../lib/upstream/client.ts';
import { spawnUpstream } from '../../support/spawn-upstream.ts';

const PATHS: [CallRequest['adapter'], path: string, field: string][] = [
  ['openai', '/v1/chat/completions', 'choices'],
  ['openai_responses', '/v1/responses', 'output'],
  ['anthropic', '/v1/messages', 'content'],
  ['openai_embeddings', '/v1/embeddings', 'data'],
];

function caller(url: string) {
  const client = createUpstreamClient({ connections: 1, userAgent: 'x', clock: systemClock });
  const call = (adapter: CallRequest['adapter'], path: string, body: string) =>
    client.call({
      url: url + path,
      headers: { 'content-type': 'application/json' },
      body: [Buffer.from(body)],
      adapter,
      timeoutMs: 20_000,
      signal: new AbortController().signal,
    });
  return { call, close: () => client.close() };
}

describe('the demo upstream', () => {
  test('answers every adapter with its own result field, a usage object and the model it was asked for', async () => {
    const server = await startDemoUpstream({ ...DEMO_UPSTREAM, maxLatencyMs: 20, rate429: 0, rate500: 0 });
    const { call, close } = caller(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    for (const [adapter, path, field] of PATHS) {
      const result = await call(adapter, path, '{"model":"demo-1"}');
      expect(result.class).toBe('success');
      expect(result.parsed).toMatchObject({ model: 'demo-1', usage: expect.any(Object), [field]: expect.any(Array) });
    }
    expect(await call('openai', '/v1/chat/completions', '[]')).toMatchObject({ class: 'client_error', status: 400 });
    expect(await call('openai', '/v1/nothing', '{"model":"m"}')).toMatchObject({ class: 'client_error', status: 404 });
    await close();
    server.close();
  });

  test('fails as often as it is told to', async () => {
    const server = await startDemoUpstream({ ...DEMO_UPSTREAM, maxLatencyMs: 20, rate429: 0.5, rate500: 0.5 });
    const { call, close } = caller(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    for (let i = 0; i < 5; i++) {
      const result = await call('openai', '/v1/chat/completions', '{"model":"m"}');
      expect(result.class).toBeOneOf(['rate_limit_short', 'server_error']);
    }
    await close();
    server.close();
  });
});

describe('the upstream process for benches', () => {
  test('answers every adapter and counts requests and users', async () => {
    const upstream = await spawnUpstream({ countUsers: true });
    const { call, close } = caller(upstream.url);
    for (const [adapter, path] of PATHS) {
      // The body arrives in several chunks.
      const body = JSON.stringify({ model: 'm', user: `item-${adapter}`, text: 'x'.repeat(300_000) });
      expect(await call(adapter, path, body)).toMatchObject({ class: 'success' });
    }
    await call('openai', '/v1/chat/completions', '{"model":"m","user":"item-openai"}');
    expect(await upstream.stats()).toMatchObject({
      requests: 5,
      open: 0,
      users: { 'item-openai': 2, 'item-anthropic': 1 },
    });
    await close();
    await upstream.stop();
  });
});
