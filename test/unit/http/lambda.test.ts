import type { Context } from 'aws-lambda';
import { expect, test } from 'vitest';
import { systemClock } from '../../../lib/base/clock.ts';
import { ApiError } from '../../../lib/base/errors.ts';
import { createLog } from '../../../lib/base/log.ts';
import { PAGE_BYTES } from '../../../lib/batch/results/results.ts';
import type { ApiEvent, ApiResult, StreamResult } from '../../../lib/http/event.ts';
import { forLambda, type LambdaDeps } from '../../../lib/http/lambda.ts';
import type { PayloadRef } from '../../../lib/payloads/payload-store.ts';

const REF: PayloadRef = { kind: 'result', id: '01890000-0000-7000-8000-000000000000' };
const TYPE = { 'content-type': 'application/x-test' };

async function* bytes(...chunks: (string | Buffer)[]): AsyncGenerator<Buffer> {
  for (const chunk of chunks) yield Buffer.from(chunk as string);
}

function streamed(more: Partial<StreamResult>): StreamResult {
  return { statusCode: 200, headers: { ...TYPE }, stream: bytes('a', 'b'), length: null, object: null, ...more };
}

/** A store that makes links, or one that cannot; `asked` lists the calls to it. */
function storeOf(canLink: boolean, size = 0) {
  const asked: string[] = [];
  const link = async ({ kind }: PayloadRef, _seconds: number, type?: string) => {
    asked.push(`link ${kind} ${type}`);
    return 'https://store/signed';
  };
  const payloads: LambdaDeps['payloads'] = {
    size: async () => {
      asked.push('size');
      return size;
    },
    write: async ({ kind }, pieces) =>
      void asked.push(`write ${kind} ${pieces.reduce((sum, { length }) => sum + length, 0)}`),
    ...(canLink && { link }),
  };
  return { payloads, asked };
}

function answer(result: ApiResult, { payloads = storeOf(false).payloads, method = 'GET' } = {}) {
  const event = {
    rawPath: '/v1/batches/x/results',
    rawQueryString: '',
    headers: {},
    requestContext: { http: { method }, requestId: 'r-1' },
  } as unknown as ApiEvent;
  const run = forLambda(async () => result, { payloads, clock: systemClock, log: createLog('silent') });
  return run(event, {} as Context);
}

test('leaves an answer with a body as it is', async () => {
  const result = { statusCode: 201, headers: TYPE, body: '{}', batchId: 'x' };
  expect(await answer(result)).toEqual({ statusCode: 201, headers: TYPE, body: '{}' });
});

test('answers only when the work in the background is done', async () => {
  const { promise: background, resolve } = Promise.withResolvers<void>();
  const order: string[] = [];
  const answering = answer({ statusCode: 200, headers: {}, background }).then(() => order.push('answer'));
  await new Promise(setImmediate);
  order.push('done');
  resolve();
  await answering;
  expect(order).toEqual(['done', 'answer']);
});

test('collects a stream as base64', async () => {
  const odd = Buffer.from([0xff, 0xfe]);
  expect(await answer(streamed({ stream: bytes('a', odd) }))).toEqual({
    statusCode: 200,
    headers: TYPE,
    isBase64Encoded: true,
    body: Buffer.concat([Buffer.from('a'), odd]).toString('base64'),
  });
});

test('asks nothing of a stream whose head alone is wanted', async () => {
  const { payloads, asked } = storeOf(true, PAGE_BYTES + 1);
  const head = await answer(streamed({ object: REF }), { payloads, method: 'HEAD' });
  expect([head, asked]).toEqual([{ statusCode: 200, headers: TYPE }, []]);
});

test.each([
  ['of a known length', PAGE_BYTES + 1, []],
  ['whose length the store knows', null, ['size']],
] as const)('redirects to an object that is too large for an answer, %s', async (_, length, before) => {
  const { payloads, asked } = storeOf(true, PAGE_BYTES + 1);
  const { statusCode, headers, body } = await answer(streamed({ length, object: REF }), { payloads });
  expect([statusCode, body, headers.location]).toEqual([303, undefined, 'https://store/signed']);
  expect([headers['content-type'], headers['x-request-id']]).toEqual([undefined, 'r-1']);
  expect(asked).toEqual([...before, 'link result application/x-test']);
});

test('sends an object itself that just fits, and any where there are no links', async () => {
  const { payloads, asked } = storeOf(true);
  expect((await answer(streamed({ length: PAGE_BYTES, object: REF }), { payloads })).statusCode).toBe(200);
  expect(asked).toEqual([]);
  expect((await answer(streamed({ length: PAGE_BYTES + 1, object: REF }))).statusCode).toBe(200);
});

test.each([
  [true, null],
  [false, PAGE_BYTES],
])('sends the page of an answer that has pages (links: %s)', async (canLink, wanted) => {
  let most: number | null | undefined;
  const page = (singleMaxBytes: number | null) => {
    most = singleMaxBytes;
    return bytes('page');
  };
  const { body } = await answer(streamed({ page }), storeOf(canLink));
  expect([Buffer.from(body!, 'base64').toString(), most]).toEqual(['page', wanted]);
});

test('puts a page of one item that is too large for an answer into the store, and redirects to it', async () => {
  const { payloads, asked } = storeOf(true);
  const large = PAGE_BYTES + 1001;
  const { statusCode } = await answer(streamed({ page: () => bytes(Buffer.alloc(large)) }), { payloads });
  expect([statusCode, asked]).toEqual([303, [`write result ${large}`, 'link result application/x-test']]);
});

test('makes an error answer of a stream that fails, wherever it does', async () => {
  const failing = (async function* () {
    yield Buffer.from('a');
    throw new ApiError('not_found');
  })();
  const { statusCode, headers, body } = await answer(streamed({ stream: failing }));
  expect([statusCode, JSON.parse(body!).error.code]).toEqual([404, 'not_found']);
  expect(headers).toMatchObject({ 'content-type': 'application/json', 'request-id': 'r-1' });
});
