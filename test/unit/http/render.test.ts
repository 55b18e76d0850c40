import { expect, test } from 'vitest';
import { API_ERRORS, ApiError, type ApiErrorCode } from '../../../lib/base/errors.ts';
import { createLog } from '../../../lib/base/log.ts';
import { errorForm } from '../../../lib/http/error-form.ts';
import { attachment, renderError } from '../../../lib/http/render.ts';
import { PayloadNotFound, StorageFull } from '../../../lib/payloads/payload-store.ts';

/** An error as the AWS SDK throws it. */
const aws = (name: string, httpStatusCode: number | undefined) =>
  Object.assign(new Error('injected'), { name, $metadata: { httpStatusCode } });

const render = (error: unknown) => {
  const { statusCode, headers, body } = renderError(error, 'r', createLog('silent'), 'openai');
  return { statusCode, headers, error: JSON.parse(body!).error };
};

test.each([
  ['/v1/messages/batches', 'invalid_value', 400, 'invalid_request_error'],
  ['/anthropic/v1/messages/batches/x', 'invalid_api_key', 401, 'authentication_error'],
  ['/anthropic/v1/messages/batches', 'no_policy', 403, 'permission_error'],
  ['/v1/messages/batches/x', 'not_found', 404, 'not_found_error'],
  ['/v1/messages/batches', 'idempotency_conflict', 409, 'conflict_error'],
  ['/v1/messages/batches', 'too_many_pending', 429, 'rate_limit_error'],
  ['/v1/messages/batches', 'internal', 500, 'api_error'],
  ['/v1/messages/batches', 'not_ready', 503, 'api_error'],
] as const)('speaks Anthropic below %s: %s is %i %s', (path, code, status, type) => {
  const { statusCode, body } = renderError(new ApiError(code), 'r1', createLog('silent'), errorForm(path, {}));
  expect(statusCode).toBe(status);
  expect(JSON.parse(body!)).toEqual({
    type: 'error',
    error: { type, message: API_ERRORS[code].message },
    request_id: 'r1',
  });
});

test.each(Object.keys(API_ERRORS) as ApiErrorCode[])('gives %s its status and four keys', (code) => {
  const answer = render(new ApiError(code, 'own text', { param: 'p' }));
  const { status, message } = API_ERRORS[code];
  expect(answer.statusCode).toBe(status);
  expect(answer.headers['content-type']).toBe('application/json');
  expect(answer.headers['retry-after']).toBe(status === 503 ? '5' : undefined);
  expect(answer.headers['x-should-retry']).toBe(status === 409 && code !== 'upload_incomplete' ? 'false' : undefined);
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
  ['a Unix socket that went', Object.assign(new Error('x'), { code: 'ENOENT', syscall: 'connect' }), 503, 'not_ready'],
  ['a file that is missing', Object.assign(new Error('x'), { code: 'ENOENT', syscall: 'open' }), 500, 'internal'],
  ['a cut connection', new Error('Connection terminated unexpectedly'), 503, 'not_ready'],
  ['a database that shuts down', Object.assign(new Error('admin'), { code: '57P01' }), 503, 'not_ready'],
  ['a name server that is away', Object.assign(new Error('lookup'), { code: 'EAI_AGAIN' }), 503, 'not_ready'],
  ['a disk that does not read', Object.assign(new Error('read'), { code: 'EIO' }), 503, 'not_ready'],
  ['a mount that went away', Object.assign(new Error('stale'), { code: 'ESTALE' }), 503, 'not_ready'],
  ['throttling by S3', aws('SlowDown', 503), 503, 'not_ready'],
  ['throttling with another status', aws('ThrottlingException', 400), 503, 'not_ready'],
  ['S3 that fails without a word', aws('UnknownError', 502), 503, 'not_ready'],
  ['S3 that does not answer', aws('TimeoutError', undefined), 503, 'not_ready'],
  ['S3 that refuses the credentials', aws('AccessDenied', 403), 500, 'internal'],
  ['a bucket that is not there', aws('NoSuchBucket', 404), 500, 'internal'],
  ['an object that is not there', new PayloadNotFound('result/x'), 500, 'internal'],
  ['a request that S3 does not understand', aws('InvalidArgument', 400), 500, 'internal'],
  ['a broken constraint', Object.assign(new Error('check'), { code: '23514' }), 500, 'internal'],
  ['a fault of the code', new TypeError('x is undefined'), 500, 'internal'],
  ['a thrown string', 'text', 500, 'internal'],
])('answers %s', (_, error, status, code) => {
  const answer = render(error);
  expect([answer.statusCode, answer.error.code, answer.error.param]).toEqual([status, code, null]);
});

test('speaks Anthropic to a client that says its version, wherever it asks', () => {
  expect(errorForm('/v1/batches', { 'anthropic-version': '2023-06-01' })).toBe('anthropic');
  expect(errorForm('/v1/batches', {})).toBe('openai');
});

test.each([
  ['a.jsonl', 'attachment; filename="a.jsonl"'],
  ['a b;c.jsonl', 'attachment; filename="a b;c.jsonl"'],
  ['a"b.jsonl', `attachment; filename="a_b.jsonl"; filename*=UTF-8''a%22b.jsonl`],
  ['é😀.jsonl', `attachment; filename="__.jsonl"; filename*=UTF-8''%C3%A9%F0%9F%98%80.jsonl`],
  ["it's 100%.jsonl", `attachment; filename="it's 100_.jsonl"; filename*=UTF-8''it%27s%20100%25.jsonl`],
])('names a file %s as %s', (name, header) => {
  expect(attachment(name)).toBe(header);
});
