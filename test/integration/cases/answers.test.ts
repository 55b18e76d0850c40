import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { parseBatchId } from '../../../lib/surfaces/openai/find-batch.ts';
import { BOUNDARY, formOf } from '../../support/files-form.ts';
import { WAYS, type Way } from '../../support/native-api.ts';
import { type Service, startService } from '../../support/service.ts';
import { goodAnswer, send } from '../../support/upstream-directives.ts';

// A failure is not an answer ("Judgement of a 2xx answer" in docs/spec/gateway-rules.md), on all surfaces.

let service: Service;
beforeAll(async () => {
  service = await startService();
});
afterAll(() => service.close());
beforeEach(() => {
  service.upstream.forget();
  service.upstream.answerWith(null);
});

const NO_RESPONSE = 'upstream answered 200 with a body that is no response';
const AN_ERROR = 'upstream answered 200 with an error';

/** By shape: bodies of a 200 and the texts of their items; null for an answer. */
const BODIES: Record<'openai' | 'openai_responses' | 'anthropic', [body: string, text: string | null][]> = {
  openai: [
    ['{"choices":[]}', null],
    ['{"choices":null}', NO_RESPONSE],
    ['{}', NO_RESPONSE],
    ['{"detail":"Not Found"}', NO_RESPONSE],
    ['{"object":"error","message":"too long","code":400}', `${AN_ERROR}: too long`],
    ['{"choices":[{"index":0,"finish_reason":"error","message":{"content":""}}]}', AN_ERROR],
    ['{"choices":[{"finish_reason":"stop"},{"error":{"code":400,"message":"gone"}}]}', `${AN_ERROR}: gone`],
  ],
  openai_responses: [
    ['{"status":"incomplete","output":[]}', null],
    [
      '{"status":"failed","error":{"code":"invalid_prompt","message":"bad prompt"},"output":[]}',
      `${AN_ERROR}: bad prompt`,
    ],
    ['{"status":"cancelled","output":[]}', NO_RESPONSE],
    ['{"status":"queued","output":[]}', NO_RESPONSE],
    ['{"status":"in_progress","output":[]}', NO_RESPONSE],
  ],
  anthropic: [
    ['{"type":"message","content":[]}', null],
    ['{"type":"message","content":null}', NO_RESPONSE],
    ['{"type":"error","error":{"type":"invalid_request_error","message":"no tools"}}', `${AN_ERROR}: no tools`],
  ],
};

/** The item of model `any` is answered with the body in its `as`. */
const sayAsAsked = () =>
  service.upstream.answerWith(({ body }, response) => send(response, 200, JSON.parse(body.toString()).as));

async function createOpenai(way: Way, endpoint: string, bodies: readonly object[]): Promise<string> {
  const lines = bodies.map((body, i) => JSON.stringify({ custom_id: `i${i}`, method: 'POST', url: endpoint, body }));
  const body = formOf([
    { name: 'purpose', value: 'batch' },
    { name: 'file', filename: 'in.jsonl', value: lines.join('\n') },
  ]);
  const headers = { 'content-type': `multipart/form-data; boundary=${BOUNDARY}` };
  const file = await service.call(way, { method: 'POST', path: '/v1/files', body, headers });
  const batch = { input_file_id: file.json.id, endpoint, completion_window: '24h' };
  const created = await service.call(way, { method: 'POST', path: '/v1/batches', body: JSON.stringify(batch) });
  return created.json.id;
}

/** The batch once its files are written, and the lines of both by custom_id. */
async function endOfOpenai(way: Way, id: string) {
  const batch = await vi.waitFor(
    async () => {
      const { json } = await service.call(way, { path: `/v1/batches/${id}` });
      expect(json.status).toMatch(/^(completed|failed)$/);
      return json;
    },
    { timeout: 20_000, interval: 20 },
  );
  // biome-ignore lint/suspicious/noExplicitAny: lines are of many forms
  const lines: Record<string, any> = {};
  for (const fileId of [batch.output_file_id, batch.error_file_id]) {
    if (fileId === null) continue;
    const { text } = await service.call(way, { path: `/v1/files/${fileId}/content` });
    for (const line of text.trimEnd().split('\n')) lines[JSON.parse(line).custom_id] = JSON.parse(line);
  }
  return { batch, lines };
}

describe.each(WAYS)('over %s', (way) => {
  test.each(Object.keys(BODIES) as (keyof typeof BODIES)[])(
    'a native %s item fails by what is in its 200',
    async (shape) => {
      sayAsAsked();
      const items = BODIES[shape].map(([as]) => ({ model: 'any', as }));
      const { id, results } = await service.run(way, items, { shape });
      expect(results.map(({ state, error }) => [state, error])).toEqual(
        BODIES[shape].map(([, text]) =>
          text === null ? ['completed', undefined] : ['discarded', `batch item: ${text}`],
        ),
      );
      expect(
        (await service.events(id)).map(({ status, error_kind, error_message, cost }) => [
          status,
          error_kind,
          error_message,
          cost,
        ]),
      ).toEqual(BODIES[shape].map(([, text]) => [200, text === null ? null : 'bad_response', text, null]));
    },
  );

  test('an OpenAI batch has such items in its error file', async () => {
    sayAsAsked();
    const bodies = BODIES.openai.map(([as]) => ({ model: 'any', as }));
    const { batch, lines } = await endOfOpenai(way, await createOpenai(way, '/v1/chat/completions', bodies));
    expect(batch.request_counts).toEqual({ total: 7, completed: 1, failed: 6 });
    for (const [i, [, text]] of BODIES.openai.entries()) {
      const expected =
        text === null
          ? { response: { status_code: 200 }, error: null }
          : { response: null, error: { code: 'bad_response', message: text } };
      expect(lines[`i${i}`]).toMatchObject(expected);
    }
    // The bodies are kept beside the texts.
    const kept = await service.sql(
      "select idx from batch_items where batch_id = $1::uuid and state = 'discarded' and output_length > 0 order by idx",
      [parseBatchId(batch.id)],
    );
    expect(kept.map(({ idx }) => idx)).toEqual([1, 2, 3, 4, 5, 6]);
  });

  test('a message batch tells what the error inside says', async () => {
    sayAsAsked();
    const requests = BODIES.anthropic.map(([as], i) => ({ custom_id: `i${i}`, params: { model: 'any', as } }));
    const body = JSON.stringify({ requests });
    const path = '/v1/messages/batches';
    const { json } = await service.call(way, { method: 'POST', path, body });
    await vi.waitFor(
      async () => {
        const batch = await service.call(way, { path: `${path}/${json.id}` });
        expect(batch.json.processing_status).toBe('ended');
      },
      { timeout: 20_000, interval: 20 },
    );
    const { text } = await service.call(way, { path: `${path}/${json.id}/results` });
    const results = text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line).result);
    expect(results).toMatchObject([
      { type: 'succeeded', message: { content: [] } },
      { type: 'errored', error: { error: { type: 'api_error', message: NO_RESPONSE } } },
      { type: 'errored', error: { error: { type: 'invalid_request_error', message: 'no tools' } } },
    ]);
  });

  test('an error inside a 200 is retried when its code says so, and the last text stays', async () => {
    let calls = 0;
    service.upstream.answerWith(({ path, model }, response) => {
      const good = goodAnswer(path, model);
      send(response, 200, ++calls % 2 === 0 ? good : '{"error":{"code":"server_error","message":"once more"}}');
    });
    const more = { max_attempts: 2 };
    const { id, results } = await service.run(way, [{ model: 'any' }], { more });
    expect(results[0]!.state).toBe('completed');
    expect((await service.events(id))[0]).toMatchObject({ attempts: 2, status: 200, error_kind: null });

    service.upstream.answerWith((_request, response) => send(response, 200, '{"error":{"code":503,"message":"busy"}}'));
    const failed = await service.run(way, [{ model: 'any' }], { more });
    expect(failed.results[0]!.error).toBe(`batch item: ${AN_ERROR}: busy`);
    expect((await service.events(failed.id))[0]).toMatchObject({ attempts: 2, error_kind: 'bad_response' });

    service.upstream.answerWith((_request, response) => send(response, 200, '{"error":{"code":404,"message":"no"}}'));
    const final = await service.run(way, [{ model: 'any' }], { more });
    expect((await service.events(final.id))[0]).toMatchObject({ attempts: 1, error_kind: 'bad_response' });
  });

  test.each([408, 409, 425])('a %i of an upstream is retried', async (status) => {
    let calls = 0;
    service.upstream.answerWith(({ path, model }, response) => {
      send(response, ++calls === 1 ? status : 200, calls === 1 ? '{"error":{}}' : goodAnswer(path, model));
    });
    const { id, results } = await service.run(way, [{ model: 'any' }], { more: { max_attempts: 2 } });
    expect(results[0]!.state).toBe('completed');
    expect((await service.events(id))[0]).toMatchObject({ attempts: 2, status: 200 });
  });

  test('embeddings need a vector for each input', async () => {
    const vectors = (...embeddings: unknown[]) =>
      JSON.stringify({ data: embeddings.map((embedding) => ({ embedding })) });
    sayAsAsked();
    const bodies = [
      { input: ['a', 'b'], as: vectors([1], [2]) },
      { input: [5, 6, 7], as: vectors([1]) },
      { input: ['a', 'b'], as: vectors([1]) },
      { input: 'a', as: vectors([]) },
      { input: 'a', as: '{"object":"list"}' },
    ].map((body) => ({ model: 'any', ...body }));
    const { lines } = await endOfOpenai(way, await createOpenai(way, '/v1/embeddings', bodies));
    expect(bodies.map((_, i) => lines[`i${i}`].error?.message ?? null)).toEqual([
      null,
      null,
      NO_RESPONSE,
      NO_RESPONSE,
      NO_RESPONSE,
    ]);
  });

  test('background is refused like stream', async () => {
    const { results } = await service.run(
      way,
      [
        { model: 'any', background: true },
        { model: 'any', background: false },
      ],
      {
        shape: 'openai_responses',
      },
    );
    expect(results.map(({ error }) => error)).toEqual(['batch item: background must not be true', undefined]);
    expect(service.upstream.received).toHaveLength(1);
    const id = await createOpenai(way, '/v1/responses', [{ model: 'any' }, { model: 'any', background: true }]);
    const { batch } = await endOfOpenai(way, id);
    expect(batch).toMatchObject({
      status: 'failed',
      errors: {
        data: [
          {
            code: 'background_not_supported',
            param: 'body.background',
            line: 2,
            message: 'background must not be true',
          },
        ],
      },
    });
  });
});
