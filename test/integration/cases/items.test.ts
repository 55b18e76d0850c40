import fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { WAYS } from '../../support/native-api.ts';
import { type Service, startService } from '../../support/service.ts';

const LIMITED = `---
kind: RateLimit
metadata: {name: one-a-day}
spec: {rules: [{meter: requests, amount: 1, window: 86400, strategy: fixed-window}]}
---
kind: Policy
metadata: {name: limited}
spec: {models: [test], rateLimit: one-a-day}
---
kind: Key
metadata: {name: eve}
spec: {policy: limited, valueFrom: {kind: env, env: TEST_KEY_EVE}}
`;

let service: Service;

beforeAll(async () => {
  service = await startService({ catalog: LIMITED });
});
afterAll(() => service.close());
beforeEach(() => {
  service.upstream.forget();
  service.upstream.answerWith(null);
});

/** Items with the error they must get, each beside good items that must not suffer. */
const BAD: [name: string, item: string | Buffer, error: string, kind: string][] = [
  ['case 3: null', 'null', 'request body must be a JSON object', 'invalid_request'],
  ['case 3: an array', '[1]', 'request body must be a JSON object', 'invalid_request'],
  ['case 3: a string', '"text"', 'request body must be a JSON object', 'invalid_request'],
  [
    'case 3: a string holding JSON',
    '"{\\"model\\":\\"any\\"}"',
    'request body must be a JSON object',
    'invalid_request',
  ],
  ['case 3: a number', '1e400', 'request body must be a JSON object', 'invalid_request'],
  ['case 3: true', 'true', 'request body must be a JSON object', 'invalid_request'],
  ['no model', '{"messages":[]}', 'model is required', 'invalid_request'],
  ['a null model', '{"model":null}', 'model is required', 'invalid_request'],
  ['a model that is a number', '{"model":4}', 'model is required', 'invalid_request'],
  ['case 6: stream true', '{"model":"any","stream":true}', 'stream must not be true', 'invalid_request'],
  [
    'case 6: stream true in escapes',
    '{"model":"any","\\u0073tream":true}',
    'stream must not be true',
    'invalid_request',
  ],
  ['an unknown model', '{"model":"gpt-none"}', 'route "gpt-none": model not found', 'model_not_found'],
  ['an empty model', '{"model":""}', 'model is required', 'invalid_request'],
  ['a disabled model', '{"model":"off"}', 'route "off": model disabled', 'model_disabled'],
  [
    'case 19: a forbidden model',
    '{"model":"foreign"}',
    'route "foreign": model not allowed by policy',
    'model_not_allowed',
  ],
  [
    'a model without a host',
    '{"model":"nowhere"}',
    'route "nowhere": no enabled host binding for model',
    'no_host_binding',
  ],
  ['a host without keys', '{"model":"keyless"}', 'route "keyless": no host keys available for this host', 'no_keys'],
  ['case 34: NUL in the model', '{"model":"a\\u0000b"}', 'route "a\\u0000b": model not found', 'model_not_found'],
  ['case 34: a lone surrogate', '{"model":"a\\ud800"}', 'route "a\\ud800": model not found', 'model_not_found'],
  [
    'case 34: 10 MB of model',
    `{"model":"${'m'.repeat(10_000_000)}"}`,
    `route "${'m'.repeat(128)}": model not found`,
    'model_not_found',
  ],
];

describe.each(WAYS)('over %s', (way) => {
  test.each(BAD)('%s is that item’s own error, nothing is sent', async (_name, item, error, kind) => {
    const { id, results } = await service.run(way, [{ model: 'any', n: 0 }, item, { model: 'any', n: 2 }]);
    expect(results.map(({ state }) => state)).toEqual(['completed', 'discarded', 'completed']);
    expect(results[1]).toEqual({ idx: 1, state: 'discarded', error: `batch item: ${error}` });
    expect(service.upstream.received.map(({ body }) => JSON.parse(body.toString()).n).sort()).toEqual([0, 2]);
    const events = await service.events(id);
    expect(events).toHaveLength(3);
    expect(events[1]).toMatchObject({ status: 0, attempts: 0, error_kind: kind, error_message: error, cost: null });
    const count = await service.call(way, { path: `/v1/batches/${id}?items=false` });
    expect(count.json.counts).toEqual({ completed: 2, discarded: 1 });
  });

  test('a cross-shape item says which shapes', async () => {
    const { results, id } = await service.run(way, [{ model: 'chat-only' }], { shape: 'anthropic' });
    expect(results[0]!.error).toBe('batch item: cross-shape dispatch not supported (anthropic -> openai)');
    expect((await service.events(id))[0]).toMatchObject({ error_kind: 'cross_shape' });
    expect(service.upstream.received).toHaveLength(0);
  });

  test('case 2: raw U+2028 and U+2029 in a message are part of one item', async () => {
    const item = `{"model":"any","messages":[{"content":"a\u2028b\u2029c"}]}`;
    const { results } = await service.run(way, [item]);
    expect(results).toHaveLength(1);
    expect(service.upstream.received[0]!.body.toString()).toBe(item);
  });

  test('case 1: a byte order mark before the submission is accepted', async () => {
    const body = Buffer.from('\uFEFF\r\n{"shape":"openai","requests":[\r\n{"model":"any"}\r\n]}\r\n\r\n');
    const answer = await service.call(way, { method: 'POST', path: '/v1/batches', body });
    expect([answer.status, answer.json.total_items]).toEqual([202, 1]);
    await service.finished(answer.json.id);
    expect(service.upstream.received[0]!.body.toString()).toBe('{"model":"any"}');
  });

  test('case 8: the upstream receives the very bytes, whatever they are', async () => {
    const texts = [
      '{"seed":9007199254740993,"model":"any"}',
      '{"b":1,"a":2,"model":"any"}',
      '{"model":"any","x":[1.0,1e400,-0,1E+2,0.10000000000000000001]}',
      '{"model":"any","s":"\\u0000\\ud800 \\udfff \\/ \\u00e9 é"}',
      '{ "model" :\t"any" ,\n "k": 1, "k": 2, "": {} }',
      `{"m\\u006fdel":"any","deep":${'['.repeat(500)}${']'.repeat(500)}}`,
      '{"model":"nope","x":1,"model":"any"}',
    ];
    const { results } = await service.run(way, texts);
    expect(results.map(({ state }) => state)).toEqual(texts.map(() => 'completed'));
    // A duplicate `model` is replaced wherever it stands; nothing else is touched.
    const sent = [...texts.slice(0, -1), '{"model":"any","x":1,"model":"any"}'];
    expect(service.upstream.received.map(({ body }) => body.toString()).sort()).toEqual(sent.sort());
  });

  test('case 8: only the model’s value is replaced, in place, with the upstream’s name', async () => {
    await service.run(way, ['{"z":9007199254740993, "model" : "pr\\u0069ced" ,"a":1e400}']);
    const [{ body, headers }] = service.upstream.received as [(typeof service.upstream.received)[0]];
    expect(body.toString()).toBe('{"z":9007199254740993, "model" : "priced-upstream" ,"a":1e400}');
    expect(headers['content-length']).toBe(String(body.length));
  });

  test('case 8: answers come back byte for byte', async () => {
    const answers = [
      '{"choices":[],"seed":9007199254740993,"b":1,"a":2,"b":3}',
      '{ "choices" : [ ] , "x" : 1.0 , "y":1e400}\n',
      '{"choices":[],"s":"\\u0000 \\ud800 \u2028 é \\/"}',
    ];
    service.upstream.answerWith(({ body }, response) => {
      response.setHeader('content-type', 'application/json');
      response.end(answers[JSON.parse(body.toString()).n]);
    });
    const items = answers.map((_, n) => ({ model: 'any', n }));
    const { answer } = await service.run(way, items);
    const whole = answers.map((text, idx) => `{"idx":${idx},"state":"completed","response":${text}}`);
    const tail = way === 'lambda' ? ',"next_after":null' : '';
    expect(answer.text).toBe(`{"results":[${whole.join(',')}]${tail}}`);
  });

  test('case 8: whatever JSON it is, the upstream gets those bytes, and the caller gets the upstream’s', async () => {
    const space = fc.constantFrom('', ' ', '\n', '\t \r\n');
    const scalar = fc.oneof(
      fc.constantFrom(
        '1.0',
        '-0',
        '1e400',
        '9007199254740993',
        '0.1e-7',
        'null',
        'true',
        '"\\u0000\\ud800"',
        '"\\/"',
        '[ ]',
      ),
      fc.string({ unit: 'binary' }).map((text) => JSON.stringify(text)),
      fc.json({ maxDepth: 3 }),
    );
    const member = fc.tuple(space, fc.string({ maxLength: 5 }), space, scalar, space);
    const items = fc.sample(fc.array(member, { maxLength: 6 }), 150).map((members, n) => {
      const texts = members.map(([a, key, b, value, c]) => `${a}${JSON.stringify(`x${key}`)}${b}:${c}${value}`);
      return `{${[`"model":"any","n":${n}`, ...texts].join(',')} }`;
    });
    service.upstream.answerWith(({ body }, response) => {
      response.end(Buffer.concat([Buffer.from('{"choices":[],"echo":'), body, Buffer.from('}')]));
    });
    const { answer } = await service.run(way, items);
    const whole = items.map(
      (item, idx) => `{"idx":${idx},"state":"completed","response":{"choices":[],"echo":${item}}}`,
    );
    const tail = way === 'lambda' ? ',"next_after":null' : '';
    expect(answer.bytes.equals(Buffer.from(`{"results":[${whole.join(',')}]${tail}}`))).toBe(true);
    const sent = service.upstream.received.map(({ body }) => body.toString());
    expect(sent.sort()).toEqual([...items].sort());
  });

  test('case 9: items with keys like the submission’s own, and megabytes of base64, keep their boundaries', async () => {
    const items = [
      '{"model":"any","requests":[{"shape":"x"}],"shape":"anthropic"}',
      `{"model":"any","data":"${'QUJD'.repeat(500_000)}"}`,
      '{"model":"any","text":"],\\"requests\\":[{\\\\"}',
    ];
    const { results } = await service.run(way, items);
    expect(results.map(({ state }) => state)).toEqual(['completed', 'completed', 'completed']);
    expect(service.upstream.received.map(({ body }) => body.toString()).sort()).toEqual([...items].sort());
  });

  test.each([
    ['openai', '/v1/chat/completions'],
    ['openai_responses', '/v1/responses'],
    ['anthropic', '/v1/messages'],
  ] as const)('a %s item goes to %s', async (shape, path) => {
    const headers = { 'anthropic-version': '2099-01-01', 'anthropic-beta': 'b-1' };
    const { results } = await service.run(way, [{ model: 'any' }], { shape, headers });
    expect(results[0]!.state).toBe('completed');
    const [request] = service.upstream.received;
    expect([request!.path, request!.headers['anthropic-version'], request!.headers['anthropic-beta']]).toEqual(
      shape === 'anthropic' ? [path, '2099-01-01', 'b-1'] : [path, undefined, undefined],
    );
  });

  test('case 7: limits are 400 and name the limit and what was sent', async () => {
    const many = `{"shape":"openai","requests":[${Array(50_001).fill('1').join(',')}]}`;
    const answer = await service.call(way, { method: 'POST', path: '/v1/batches', body: many });
    expect([answer.status, answer.json.error.code]).toEqual([400, 'too_many_items']);
    expect(answer.json.error.message).toMatch(/50001.*50000/);
  });
});

test('case 34: a refused item whose model holds a control character keeps its own text', async () => {
  const items = ['{"model":"any"}', '{"model":"any\\u0000"}', '{"model":"any\\u0000"}'];
  const { results, id } = await service.run('node', items, { as: 'eve' });
  const errors = results.flatMap(({ error }) => (error === undefined ? [] : [error]));
  expect(errors).toHaveLength(2);
  for (const error of errors) {
    expect(error).toMatch(/^batch item: rate limit exceeded: requests of policy limited, retry in \d+s$/);
  }
  const kinds = (await service.events(id)).map((event) => event.error_kind).filter((kind) => kind !== null);
  expect(kinds).toEqual(['rate_limited', 'rate_limited']);
});
