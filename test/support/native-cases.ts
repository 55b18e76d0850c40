import { expect } from 'vitest';
import type { Answer, Call } from './native-api.ts';
import type { TestUpstream } from './upstream.ts';

/** A whole service with a worker that runs, however it is deployed; its catalogue is the one of `service.ts`. */
export interface Setup {
  upstream: TestUpstream;
  call(call: Call): Promise<Answer>;
  /** Resolves when the batch's last item is final. */
  waitFinished(id: string): Promise<void>;
  close(): Promise<void>;
}

type Case = readonly [name: string, run: (setup: Setup) => Promise<void>];
interface Result {
  idx: number;
  state: string;
  response?: unknown;
  error?: string;
}

const UNKNOWN = '01890000-0000-7000-8000-000000000000';
const GOOD = '{"shape":"openai","requests":[{"model":"any"}]}';

const post = (setup: Setup, body: string | Buffer, more: Partial<Call> = {}) =>
  setup.call({ method: 'POST', path: '/v1/batches', body, ...more });

async function submit(setup: Setup, items: readonly (object | string)[], more: object = {}, call: Partial<Call> = {}) {
  const texts = items.map((item) => (typeof item === 'string' ? item : JSON.stringify(item)));
  const rest = JSON.stringify({ shape: 'openai', ...more }).slice(1);
  const answer = await post(setup, `{"requests":[${texts.join(',')}],${rest}`, call);
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)]);
  return answer.json.id as string;
}

const status = async (setup: Setup, id: string, as = 'ann') =>
  (await setup.call({ path: `/v1/batches/${id}?items=false`, as })).json;

async function results(setup: Setup, id: string, query = ''): Promise<Result[]> {
  const answer = await setup.call({ path: `/v1/batches/${id}/results${query}` });
  expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'application/json']);
  return answer.json.results;
}

async function run(setup: Setup, items: readonly (object | string)[], more: object = {}): Promise<Result[]> {
  const id = await submit(setup, items, more);
  await setup.waitFinished(id);
  return results(setup, id);
}

const expectError = (answer: Answer, code: number, error: object) => {
  expect([answer.status, Object.keys(answer.json.error)]).toEqual([code, ['type', 'message', 'code', 'param']]);
  expect(answer.json.error).toMatchObject(error);
};

const refuses = (what: string, body: string | Buffer, code: string, param: string | null): Case => [
  `refuses ${what} with 400`,
  async (setup) => expectError(await post(setup, body), 400, { type: 'invalid_request_error', code, param }),
];

const discards = (what: string, item: string, error: string): Case => [
  `discards ${what} with its own text, and runs the others`,
  async (setup) => {
    expect(await run(setup, [{ model: 'any', n: 0 }, item, { model: 'any', n: 2 }])).toEqual([
      { idx: 0, state: 'completed', response: expect.any(Object) },
      { idx: 1, state: 'discarded', error: `batch item: ${error}` },
      { idx: 2, state: 'completed', response: expect.any(Object) },
    ]);
    expect(setup.upstream.received.map(({ body }) => JSON.parse(body.toString()).n).sort()).toEqual([0, 2]);
  },
];

/** The cases of a client of the native API, the same in every set-up. Each gets a fresh upstream. */
export const NATIVE_CASES: readonly Case[] = [
  [
    'tells of its health without a credential',
    async (setup) => {
      const answer = await setup.call({ path: '/healthz', as: null });
      expect([answer.status, answer.text]).toEqual([200, '{"status":"ok"}']);
    },
  ],
  [
    'answers a submit with 202, id, status and total, and a request id',
    async (setup) => {
      const answer = await post(setup, GOOD, { headers: { 'x-request-id': 'mine' } });
      expect([answer.status, answer.headers.get('x-request-id')]).toEqual([202, 'mine']);
      expect(answer.text).toBe(`{"id":"${answer.json.id}","status":"queued","total_items":1}`);
      await setup.waitFinished(answer.json.id);
    },
  ],
  refuses('no JSON', '{"shape":', 'invalid_json', null),
  refuses('an empty body', '', 'invalid_json', null),
  refuses('what is not UTF-8', Buffer.from('{"shape":"\xff"}', 'latin1'), 'invalid_json', null),
  refuses('a missing shape', '{"requests":[1]}', 'missing_required_parameter', 'shape'),
  refuses('an unknown shape', '{"shape":"canonical","requests":[1]}', 'invalid_value', 'shape'),
  refuses('missing requests', '{"shape":"openai"}', 'missing_required_parameter', 'requests'),
  refuses('empty requests', '{"shape":"openai","requests":[]}', 'invalid_value', 'requests'),
  refuses('too many attempts', '{"shape":"openai","requests":[1],"max_attempts":11}', 'invalid_value', 'max_attempts'),
  refuses(
    'a window without a unit',
    '{"shape":"openai","requests":[1],"completion_window":3600}',
    'invalid_value',
    'completion_window',
  ),
  [
    'refuses a missing and an unknown key with 401',
    async (setup) => {
      expectError(await post(setup, GOOD, { as: null }), 401, { code: 'missing_api_key' });
      expectError(await post(setup, GOOD, { as: 'nobody' }), 401, { code: 'invalid_api_key' });
    },
  ],
  [
    'refuses a compressed body with 415',
    async (setup) => {
      const answer = await post(setup, GOOD, { headers: { 'content-encoding': 'gzip' } });
      expectError(answer, 415, { code: 'unsupported_media_type' });
    },
  ],
  [
    'makes one batch of an Idempotency-Key sent three times, and 409 of another body',
    async (setup) => {
      const headers = { 'idempotency-key': 'once' };
      const ids = await Promise.all([1, 2, 3].map(() => submit(setup, [{ model: 'any' }], {}, { headers })));
      expect(new Set(ids).size).toBe(1);
      const other = await post(setup, '{"shape":"openai","requests":[1]}', { headers });
      expectError(other, 409, { code: 'idempotency_conflict' });
      await setup.waitFinished(ids[0]!);
      expect(setup.upstream.received).toHaveLength(1);
    },
  ],
  [
    'runs 60 items and gives their results in order',
    async (setup) => {
      const items = Array.from({ length: 60 }, (_, n) => ({ model: 'any', n }));
      const id = await submit(setup, items);
      await setup.waitFinished(id);
      const all = await results(setup, id);
      expect(all.map(({ idx, state }) => [idx, state])).toEqual(items.map(({ n }) => [n, 'completed']));
      const { TotalItems, CompletedAt, counts } = await status(setup, id);
      expect([TotalItems, typeof CompletedAt, counts]).toEqual([60, 'string', { completed: 60 }]);
      const sent = setup.upstream.received.map(({ body }) => JSON.parse(body.toString()).n);
      expect(sent.sort((a, b) => a - b)).toEqual(items.map(({ n }) => n));
    },
  ],
  [
    'sends the very bytes of an item, and gives back the very bytes of its answer',
    async (setup) => {
      const item = '{"model":"any","x":[1.0,1e400,-0,9007199254740993],"s":"\\ud800 \\/ é","k":1,"k":2}';
      const answer = '{ "choices" : [ ] , "seed":9007199254740993,"x":1.0,"y":1e400,"s":"\\ud800 \u2028 é" }';
      setup.upstream.answerWith((_, response) => void response.end(answer));
      const id = await submit(setup, [item]);
      await setup.waitFinished(id);
      expect(setup.upstream.received.map(({ body }) => body.toString())).toEqual([item]);
      const { text } = await setup.call({ path: `/v1/batches/${id}/results` });
      expect(text.startsWith(`{"results":[{"idx":0,"state":"completed","response":${answer}}]`)).toBe(true);
    },
  ],
  ...(['openai', 'openai_responses', 'anthropic'] as const).map((shape, i): Case => {
    const path = ['/v1/chat/completions', '/v1/responses', '/v1/messages'][i];
    return [
      `sends items of ${shape} to ${path}`,
      async (setup) => {
        expect(await run(setup, [{ model: 'any' }], { shape })).toMatchObject([{ state: 'completed' }]);
        expect(setup.upstream.received.map((request) => request.path)).toEqual([path]);
      },
    ];
  }),
  discards('an unknown model', '{"model":"gpt-none"}', 'route "gpt-none": model not found'),
  discards('a forbidden model', '{"model":"foreign"}', 'route "foreign": model not allowed by policy'),
  discards('a stream', '{"model":"any","stream":true}', 'stream must not be true'),
  discards('NUL in a model', '{"model":"a\\u0000b"}', 'route "a\\u0000b": model not found'),
  [
    'gives a failure of the upstream its text, at once without max_attempts',
    async (setup) => {
      expect(await run(setup, [{ model: 'status-400' }, { model: 'status-503' }])).toEqual([
        { idx: 0, state: 'discarded', error: 'batch item: upstream status 400' },
        { idx: 1, state: 'discarded', error: 'batch item: upstream status 503' },
      ]);
      expect(setup.upstream.received).toHaveLength(2);
    },
  ],
  [
    'runs an item again whose failure may pass, with max_attempts',
    async (setup) => {
      let failures = 1;
      setup.upstream.answerWith((_, response) => {
        response.writeHead(failures-- > 0 ? 500 : 200, { 'content-type': 'application/json' });
        response.end('{"choices":[]}');
      });
      expect(await run(setup, [{ model: 'any' }], { max_attempts: 3 })).toEqual([
        { idx: 0, state: 'completed', response: { choices: [] } },
      ]);
      expect(setup.upstream.received).toHaveLength(2);
    },
  ],
  [
    'pages results by after and limit, and filters them by state',
    async (setup) => {
      const items = Array.from({ length: 7 }, (_, n) => ({ model: n % 3 === 1 ? 'gpt-none' : 'any' }));
      const id = await submit(setup, items);
      await setup.waitFinished(id);
      const idx = async (query: string) => (await results(setup, id, query)).map((one) => one.idx);
      expect(await idx('?limit=3')).toEqual([0, 1, 2]);
      expect(await idx('?after=2&limit=3')).toEqual([3, 4, 5]);
      expect(await idx('?after=5&limit=3')).toEqual([6]);
      expect(await idx('?state=discarded')).toEqual([1, 4]);
      const page = await setup.call({ path: `/v1/batches/${id}/results?limit=3` });
      expect(page.json.next_after).toBe(2);
      const bad = await setup.call({ path: `/v1/batches/${id}/results?limit=0` });
      expectError(bad, 400, { param: 'limit' });
    },
  ],
  [
    'shows the items of a batch, unless told not to',
    async (setup) => {
      const id = await submit(setup, [{ model: 'any' }, { model: 'gpt-none' }]);
      await setup.waitFinished(id);
      const { json } = await setup.call({ path: `/v1/batches/${id}` });
      expect(json).toMatchObject({ ID: id, InboundShape: 'openai', Status: 'queued', TotalItems: 2 });
      expect(json.counts).toEqual({ completed: 1, discarded: 1 });
      expect(json.items).toMatchObject([
        { idx: 0, state: 'completed' },
        { idx: 1, state: 'discarded' },
      ]);
      expect(await status(setup, id)).not.toHaveProperty('items');
    },
  ],
  [
    'cancels: closes the calls under way, keeps what is finished, and says the same twice',
    async (setup) => {
      const id = await submit(setup, [{ model: 'any' }, { model: 'hang' }, { model: 'hang' }]);
      await setup.upstream.waitForRequests(1, ({ model }) => model === 'hang');
      for (let i = 0; i < 2; i++) {
        const answer = await setup.call({ method: 'POST', path: `/v1/batches/${id}/cancel` });
        expect([answer.status, answer.text]).toEqual([200, '{"status":"cancelled"}']);
      }
      await setup.upstream.waitForClosedEarly();
      await setup.waitFinished(id);
      expect((await status(setup, id)).Status).toBe('cancelled');
      const [first, ...others] = await results(setup, id);
      // Where one item runs at a time, whichever comes first, nobody waits for the other to end.
      expect(['completed', 'cancelled']).toContain(first!.state);
      expect(others).toEqual([1, 2].map((idx) => ({ idx, state: 'cancelled' })));
    },
  ],
  [
    'lists the own batches, newest first, page by page',
    async (setup) => {
      const ids: string[] = [];
      for (let i = 0; i < 3; i++) ids.unshift(await submit(setup, [{ model: 'any' }]));
      const list = (query: string, as = 'ann') => setup.call({ path: `/v1/batches?surface=relay${query}`, as });
      const first = (await list('&limit=2')).json;
      expect(first.data.map(({ id }: { id: string }) => id)).toEqual(ids.slice(0, 2));
      expect([first.has_more, first.last_id]).toEqual([true, ids[1]]);
      expect((await list(`&limit=1&after=${ids[1]}`)).json.data[0].id).toBe(ids[2]);
      expect((await list('', 'bob')).text).toBe('{"data":[],"has_more":false,"last_id":null}');
      await Promise.all(ids.map(setup.waitFinished));
    },
  ],
  [
    'deletes a finished batch, and not one that runs',
    async (setup) => {
      const release = setup.upstream.hold();
      const id = await submit(setup, [{ model: 'any' }]);
      const remove = () => setup.call({ method: 'DELETE', path: `/v1/batches/${id}` });
      expectError(await remove(), 409, { code: 'batch_not_finished' });
      release();
      await setup.waitFinished(id);
      const answer = await remove();
      expect([answer.status, answer.text]).toEqual([200, `{"id":"${id}","deleted":true}`]);
      expectError(await remove(), 404, { code: 'not_found' });
    },
  ],
  [
    'answers for the batch of another as for an unknown one, on every route',
    async (setup) => {
      const id = await submit(setup, [{ model: 'any' }]);
      await setup.waitFinished(id);
      for (const [method, tail] of [
        ['GET', ''],
        ['GET', '/results'],
        ['POST', '/cancel'],
        ['DELETE', ''],
      ] as const) {
        const ask = (one: string) => setup.call({ method, path: `/v1/batches/${one}${tail}`, as: 'bob' });
        const [theirs, none] = [await ask(id), await ask(UNKNOWN)];
        expectError(none, 404, { code: 'not_found' });
        expect([theirs.status, theirs.text]).toEqual([404, none.text]);
      }
    },
  ],
];
