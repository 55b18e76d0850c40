import type { Context } from 'aws-lambda';
import { describe, expect, test } from 'vitest';
import { CONTROL_ENDPOINTS, type ControlApp } from '../../../handlers/control.ts';
import { bindEndpoints } from '../../../handlers/endpoint.ts';
import { INFERENCE_ENDPOINTS, type InferenceApp } from '../../../handlers/inference.ts';
import { ApiError } from '../../../lib/base/errors.ts';
import { createLog } from '../../../lib/base/log.ts';
import { type ApiEvent, attachStream } from '../../../lib/http/event.ts';

/** Nobody is known to it. */
const app = {
  log: createLog('silent'),
  notReady: () => null,
  adminToken: 'x'.repeat(16),
  authenticate: () => Promise.reject(new ApiError('invalid_api_key')),
} as unknown as InferenceApp & ControlApp;

const routes = [...bindEndpoints(INFERENCE_ENDPOINTS, app), ...bindEndpoints(CONTROL_ENDPOINTS, app)];
const withBody = routes
  .filter(({ body }) => body !== undefined)
  .map((route) => ({ name: `${route.method} ${route.pattern}`, ...route }));

describe('a body', () => {
  // The signature in the URL is the credential of a PUT.
  test.each(withBody.filter(({ method, pattern }) => method !== 'PUT' || !pattern.startsWith('/v1/uploads/')))(
    'is not looked at before its sender is known: $name',
    async ({ method, pattern, run, admit }) => {
      let looked = false;
      const event = {
        routeKey: `${method} ${pattern}`,
        rawPath: pattern,
        rawQueryString: '',
        headers: { authorization: 'Bearer wrong' },
        pathParameters: { id: 'x', plural: 'hosts' },
        requestContext: { requestId: 'r', http: { method } },
        isBase64Encoded: false,
        get body() {
          looked = true;
          return '{"input_file_id":1}';
        },
      } as unknown as ApiEvent;
      attachStream(
        event,
        (async function* () {
          looked = true;
          yield Buffer.from('{}');
        })(),
      );
      expect(await run(event, {} as Context)).toMatchObject({ statusCode: 401 });
      await expect(admit?.(event) ?? Promise.reject(new ApiError('invalid_api_key'))).rejects.toThrow(ApiError);
      expect(looked).toBe(false);
    },
  );

  test('that is read whole has a limit on its route; that of a submit is configured', () => {
    const unlimited = withBody.filter(({ body, maxBytes }) => body === 'read' && maxBytes === undefined);
    expect(unlimited.map(({ name }) => name)).toEqual(['POST /v1/batches']);
  });
});
