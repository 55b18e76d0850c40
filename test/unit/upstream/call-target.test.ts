import { describe, expect, test } from 'vitest';
import type { Host, HostKey } from '../../../lib/model/catalog.ts';
import { callTarget } from '../../../lib/upstream/call-target.ts';

const NO_VERSIONS = { anthropicVersion: null, anthropicBeta: null };
const host = (over: Partial<Host> = {}): Host => ({
  id: 'h',
  name: 'local',
  baseURL: 'http://127.0.0.1:9000',
  noAuth: false,
  enabled: true,
  ...over,
});
const key = (value: string | null = 'secret-1'): HostKey => ({
  id: 'k',
  name: 'local-1',
  host: 'local',
  value,
  breakerKey: 'b',
  enabled: true,
});

describe('the URL of a call', () => {
  test.each([
    ['openai', 'http://h:9000', 'http://h:9000/v1/chat/completions'],
    ['openai', 'http://h:9000/', 'http://h:9000/v1/chat/completions'],
    ['openai', 'https://h/v1', 'https://h/v1/chat/completions'],
    ['openai', 'https://h/v1/', 'https://h/v1/chat/completions'],
    ['openai', 'https://h/gateway/v1//', 'https://h/gateway/v1/chat/completions'],
    ['openai', 'https://h/gateway/', 'https://h/gateway/v1/chat/completions'],
    ['openai', 'https://h/av1', 'https://h/av1/v1/chat/completions'],
    ['openai_responses', 'https://h/v1', 'https://h/v1/responses'],
    ['openai_embeddings', 'https://h', 'https://h/v1/embeddings'],
    ['anthropic', 'https://h', 'https://h/v1/messages'],
  ] as const)('%s at %s is %s', (adapter, baseURL, expected) => {
    expect(callTarget(adapter, host({ baseURL }), key(), NO_VERSIONS).url).toBe(expected);
  });

  test.each([
    ['https://h/', '/custom/chat', 'https://h/custom/chat'],
    ['https://h', 'custom/chat?api-version=1', 'https://h/custom/chat?api-version=1'],
    ['https://h/v1', '/v1/custom', 'https://h/v1/custom'],
    ['https://h/v1', '/v10/custom', 'https://h/v1/v10/custom'],
  ])('at %s with the path %s is %s', (baseURL, path, expected) => {
    expect(callTarget('openai', host({ baseURL, path }), key(), NO_VERSIONS).url).toBe(expected);
  });

  test('carries no credentials of the base URL', () => {
    const { url } = callTarget('openai', host({ baseURL: 'https://user:pass@h/v1' }), key(), NO_VERSIONS);
    expect(url).toBe('https://h/v1/chat/completions');
  });
});

describe('the headers of a call', () => {
  test.each(['openai', 'openai_responses', 'openai_embeddings'] as const)(
    '%s has the key as a bearer, and no version whatever the batch recorded',
    (adapter) => {
      const { headers } = callTarget(adapter, host(), key(), { anthropicVersion: '2023-01-01', anthropicBeta: 'b' });
      expect(headers).toEqual({ 'content-type': 'application/json', authorization: 'Bearer secret-1' });
    },
  );

  test('anthropic has x-api-key, and 2023-06-01 where the batch recorded no version', () => {
    expect(callTarget('anthropic', host(), key(), NO_VERSIONS).headers).toEqual({
      'content-type': 'application/json',
      'x-api-key': 'secret-1',
      'anthropic-version': '2023-06-01',
    });
  });

  test('anthropic has the version and beta that the batch recorded', () => {
    const versions = { anthropicVersion: '2024-10-22', anthropicBeta: 'context-1m,tools' };
    expect(callTarget('anthropic', host(), key(), versions).headers).toMatchObject({
      'anthropic-version': '2024-10-22',
      'anthropic-beta': 'context-1m,tools',
    });
  });

  test.each([
    ['a host without authentication', host({ noAuth: true }), key()],
    ['no key', host(), null],
    ['a key without a value', host(), key(null)],
  ])('carry no credential for %s', (_name, withHost, withKey) => {
    for (const adapter of ['openai', 'openai_responses', 'anthropic'] as const) {
      const names = Object.keys(callTarget(adapter, withHost, withKey, NO_VERSIONS).headers);
      expect(names).not.toContain('authorization');
      expect(names).not.toContain('x-api-key');
    }
  });
});

describe('the memo', () => {
  test('gives the same object for the same host, key and versions, and another one for any other', () => {
    const [h, k] = [host(), key()];
    const first = callTarget('anthropic', h, k, NO_VERSIONS);
    expect(callTarget('anthropic', h, k, { ...NO_VERSIONS })).toBe(first);
    expect(callTarget('anthropic', h, key('secret-2'), NO_VERSIONS).headers['x-api-key']).toBe('secret-2');
    expect(callTarget('anthropic', h, k, { anthropicVersion: 'v', anthropicBeta: null })).not.toBe(first);
    expect(callTarget('openai', h, k, NO_VERSIONS)).not.toBe(first);
  });

  test('stays right when callers send more versions than it holds', () => {
    const [h, k] = [host(), key()];
    for (let i = 0; i < 200; i++) {
      const { headers } = callTarget('anthropic', h, k, { anthropicVersion: `v${i}`, anthropicBeta: null });
      expect(headers['anthropic-version']).toBe(`v${i}`);
    }
  });
});
