import { expect, test } from 'vitest';
import { API_ERRORS, ApiError, type ApiErrorCode } from '../../lib/errors.ts';
import { renderError } from '../../lib/http/render.ts';
import { createLog } from '../../lib/log.ts';
import { StorageFull } from '../../lib/store/payloads.ts';

const render = (error: unknown) => {
  const { statusCode, headers, body } = renderError(error, 'r', createLog('silent'));
  return { statusCode, headers, error: JSON.parse(body!).error };
};

test.each(Object.keys(API_ERRORS) as ApiErrorCode[])('gives %s its status and four keys', (code) => {
  const answer = render(new ApiError(code, 'own text', { param: 'p' }));
  const { status, message } = API_ERRORS[code];
  expect(answer.statusCode).toBe(status);
  expect(answer.headers['content-type']).toBe('application/json');
  expect(answer.headers['retry-after']).toBe(status === 503 ? '5' : undefined);
  expect(answer.error).toEqual({
    type: status < 500 ? 'invalid_request_error' : 'api_error',
    message: status < 500 ? 'own text' : message,
    code,
    param: 'p',
  });
});

test.each([
  ['a full store', new StorageFull('disk'), 503, 'storage_full'],
  ['a refused connection', Object.assign(new Error('connect'), { code: 'ECONNREFUSED' }), 503, 'not_ready'],
  ['a cut connection', new Error('Connection terminated unexpectedly'), 503, 'not_ready'],
  ['a database that shuts down', Object.assign(new Error('admin'), { code: '57P01' }), 503, 'not_ready'],
  ['a broken constraint', Object.assign(new Error('check'), { code: '23514' }), 500, 'internal'],
  ['a fault of the code', new TypeError('x is undefined'), 500, 'internal'],
  ['a thrown string', 'text', 500, 'internal'],
])('answers %s', (_, error, status, code) => {
  const answer = render(error);
  expect([answer.statusCode, answer.error.code, answer.error.param]).toEqual([status, code, null]);
});
