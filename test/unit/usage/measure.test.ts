import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../lib/base/turns.ts';
import { readLargeAnswer } from '../../../lib/upstream/large-answer.ts';
import { measure } from '../../../lib/usage/measure.ts';

type Adapter = Parameters<typeof measure>[0];

const tokensOf = (adapter: Adapter, usage: unknown) => measure(adapter, { usage }).tokens;
/** As of an answer that is too large to be parsed whole. */
const fromBytes = (adapter: Adapter, text: string) => measure(adapter, partsOf(adapter, text));

function partsOf(adapter: Adapter, text: string): unknown {
  const answer = atOnce(readLargeAnswer(adapter, Buffer.from(text)));
  return answer.kind === 'object' ? answer.parts : undefined;
}

const ODD = ['12', -1, 1.5, true, 1e300, 2 ** 53, [], {}, -0.5];

describe('token counts', () => {
  test('a chat answer is split into disjoint prompt parts and parts of its output', () => {
    const usage = {
      prompt_tokens: 100,
      completion_tokens: 60,
      total_tokens: 160,
      prompt_tokens_details: { cached_tokens: 30, cache_write_tokens: 20, audio_tokens: 5 },
      completion_tokens_details: {
        reasoning_tokens: 8,
        audio_tokens: 7,
        accepted_prediction_tokens: 6,
        rejected_prediction_tokens: 4,
      },
    };
    expect(tokensOf('openai', usage)).toEqual({
      input: 50,
      output: 60,
      cache_read: 30,
      cache_creation: 20,
      reasoning: 8,
      audio_input: 5,
      audio_output: 7,
      accepted_prediction: 6,
      rejected_prediction: 4,
    });
  });

  test('zeros and absent fields are left out', () => {
    expect(tokensOf('openai', { prompt_tokens: 3, completion_tokens: 0 })).toEqual({ input: 3 });
    expect(tokensOf('openai_responses', { output_tokens: 4 })).toEqual({ output: 4 });
    expect(tokensOf('anthropic', { input_tokens: 0, cache_read_input_tokens: 9 })).toEqual({ cache_read: 9 });
    expect(tokensOf('openai_embeddings', { prompt_tokens: 8, total_tokens: 8 })).toEqual({ input: 8 });
  });

  test.each(['openai', 'openai_responses', 'anthropic'] as const)('of %s that are null are absent', (adapter) => {
    const names = adapter === 'openai' ? ['prompt_tokens', 'completion_tokens'] : ['input_tokens', 'output_tokens'];
    const usage = (input: unknown, output: unknown, more: object = {}) =>
      tokensOf(adapter, { [names[0]!]: input, [names[1]!]: output, ...more });
    expect(usage(3, null)).toEqual({ input: 3 });
    expect(usage(null, 4)).toEqual({ output: 4 });
    expect(usage(null, null)).toBeNull();
    const nulls = {
      prompt_tokens_details: { cached_tokens: null, audio_tokens: null },
      completion_tokens_details: { reasoning_tokens: null, accepted_prediction_tokens: null },
      input_tokens_details: { cached_tokens: null },
      output_tokens_details: { reasoning_tokens: null, thinking_tokens: null },
      cache_creation: { ephemeral_5m_input_tokens: null, ephemeral_1h_input_tokens: null },
      server_tool_use: { web_search_requests: null },
      total_tokens: null,
      cached_tokens: null,
      prompt_cache_hit_tokens: null,
      cache_read_input_tokens: null,
      cache_creation_input_tokens: null,
    };
    expect(usage(3, 4, nulls)).toEqual({ input: 3, output: 4 });
  });

  test.each([
    ['openai', 'prompt_tokens', 'completion_tokens', 'completion_tokens_details'],
    ['openai_responses', 'input_tokens', 'output_tokens', 'output_tokens_details'],
  ] as const)('the total of %s says what stands beside', (adapter, input, output, details) => {
    const usage = (prompt: unknown, completion: unknown, total: unknown, reasoning?: unknown, cached?: number) =>
      tokensOf(adapter, {
        [input]: prompt,
        [output]: completion,
        total_tokens: total,
        [details]: reasoning === undefined ? null : { reasoning_tokens: reasoning },
        [`${input}_details`]: { cached_tokens: cached },
      });
    // Reasoning beside the output, and inside.
    expect(usage(30, 10, 130, 90)).toEqual({ input: 30, output: 100, reasoning: 90 });
    expect(usage(30, 100, 130, 90)).toEqual({ input: 30, output: 100, reasoning: 90 });
    expect(usage(30, 100, undefined, 90)).toEqual({ input: 30, output: 100, reasoning: 90 });
    expect(usage(30, 10, 130, 90, 20)).toEqual({ input: 10, cache_read: 20, output: 100, reasoning: 90 });
    // In the total alone.
    expect(usage(30, 10, 130)).toEqual({ input: 30, output: 100, reasoning: 90 });
    expect(usage(30, 0, 130)).toEqual({ input: 30, output: 100, reasoning: 100 });
    // Something else, that nobody explains, is not counted.
    expect(usage(30, 10, 130, 0)).toEqual({ input: 30, output: 10 });
    expect(usage(30, 10, 130, 5)).toEqual({ input: 30, output: 10, reasoning: 5 });
    expect(usage(30, 10, 39)).toEqual({ input: 30, output: 10 });
    // The cache beside the prompt.
    expect(usage(30, 10, 1040, undefined, 1000)).toEqual({ input: 30, cache_read: 1000, output: 10 });
    expect(usage(30, 10, 60, 0, 20)).toEqual({ input: 30, cache_read: 20, output: 10 });
    expect(usage(30, 10, 65, 5, 20)).toEqual({ input: 30, cache_read: 20, output: 15, reasoning: 5 });
    expect(usage(30, 10, 40, undefined, 1000)).toBeNull();
    // What is missing.
    expect(usage(null, 10, 40)).toEqual({ input: 30, output: 10 });
    expect(usage(30, null, 40)).toEqual({ input: 30, output: 10 });
    expect(usage(30, null, 20)).toEqual({ input: 30 });
    // A total that cannot be read says nothing.
    for (const odd of ODD) expect(usage(30, 10, odd, 5)).toEqual({ input: 30, output: 10, reasoning: 5 });
    expect(usage(30, null, 'many')).toBeNull();
  });

  test('details that are null are absent, and Anthropic says null for no cache', () => {
    const usage = {
      prompt_tokens: 3,
      completion_tokens: 1,
      prompt_tokens_details: null,
      completion_tokens_details: null,
    };
    expect(tokensOf('openai', usage)).toEqual({ input: 3, output: 1 });
    const claude = {
      input_tokens: 3,
      output_tokens: 1,
      cache_read_input_tokens: null,
      cache_creation_input_tokens: null,
    };
    expect(tokensOf('anthropic', { ...claude, cache_creation: null, server_tool_use: null })).toEqual({
      input: 3,
      output: 1,
    });
  });

  test('the lifetimes of a cache write stand in place of their total', () => {
    const usage = (total: unknown, written: unknown) =>
      tokensOf('anthropic', { input_tokens: 1, cache_creation_input_tokens: total, cache_creation: written });
    const both = { ephemeral_5m_input_tokens: 60, ephemeral_1h_input_tokens: 40 };
    expect(usage(100, both)).toEqual({ input: 1, cache_creation_5m: 60, cache_creation_1h: 40 });
    expect(usage(undefined, both)).toEqual({ input: 1, cache_creation_5m: 60, cache_creation_1h: 40 });
    expect(usage(100, { ephemeral_5m_input_tokens: 0, ephemeral_1h_input_tokens: 0 })).toEqual({
      input: 1,
      cache_creation: 100,
    });
    expect(usage(100, { ephemeral_1h_input_tokens: 40 })).toEqual({
      input: 1,
      cache_creation: 60,
      cache_creation_1h: 40,
    });
    expect(usage(100, undefined)).toEqual({ input: 1, cache_creation: 100 });
    expect(usage('100', both)).toBeNull();
  });

  test('thinking and web searches of an Anthropic answer are counted', () => {
    const usage = {
      input_tokens: 1,
      output_tokens: 50,
      output_tokens_details: { thinking_tokens: 40 },
      server_tool_use: { web_search_requests: 2, web_fetch_requests: 7 },
    };
    expect(tokensOf('anthropic', usage)).toEqual({ input: 1, output: 50, reasoning: 40, server_tool_use: 2 });
  });

  test.each([
    [
      'openai',
      ['prompt_tokens', 'completion_tokens'],
      {
        prompt_tokens_details: ['cached_tokens', 'cache_write_tokens', 'audio_tokens'],
        completion_tokens_details: [
          'reasoning_tokens',
          'audio_tokens',
          'accepted_prediction_tokens',
          'rejected_prediction_tokens',
        ],
      },
    ],
    [
      'openai_responses',
      ['input_tokens', 'output_tokens'],
      { input_tokens_details: ['cached_tokens', 'cache_write_tokens'], output_tokens_details: ['reasoning_tokens'] },
    ],
    [
      'anthropic',
      ['input_tokens', 'output_tokens'],
      {
        cache_creation: ['ephemeral_5m_input_tokens', 'ephemeral_1h_input_tokens'],
        output_tokens_details: ['thinking_tokens'],
        server_tool_use: ['web_search_requests'],
      },
    ],
  ] as const)('any odd value in %s leaves the item without tokens', (adapter, wholes, groups) => {
    const good = Object.fromEntries(wholes.map((name) => [name, 100]));
    expect(tokensOf(adapter, good)).not.toBeNull();
    for (const odd of ODD) {
      for (const name of wholes)
        expect([name, odd, tokensOf(adapter, { ...good, [name]: odd })]).toEqual([name, odd, null]);
      for (const [group, names] of Object.entries(groups)) {
        for (const name of names as readonly string[]) {
          expect([name, odd, tokensOf(adapter, { ...good, [group]: { [name]: odd } })]).toEqual([name, odd, null]);
        }
      }
    }
    for (const group of Object.keys(groups)) expect(tokensOf(adapter, { ...good, [group]: 'text' })).toBeNull();
  });

  test('more cached tokens than prompt, and a prompt beyond 2^53-1, are odd', () => {
    expect(tokensOf('openai', { prompt_tokens: 10, prompt_tokens_details: { cached_tokens: 11 } })).toBeNull();
    expect(tokensOf('anthropic', { input_tokens: 2 ** 53 - 1, cache_read_input_tokens: 1 })).toBeNull();
    expect(tokensOf('anthropic', { input_tokens: 2 ** 53 - 1 })).toEqual({ input: 2 ** 53 - 1 });
  });

  test('no usage, and one without any count, are nothing to price', () => {
    for (const usage of [undefined, null, 'many', 7, [], {}, { total_tokens: 5 }]) {
      expect(tokensOf('openai', usage)).toBeNull();
      expect(tokensOf('anthropic', usage)).toBeNull();
    }
  });

  test('never throws and never gives anything but whole counts above zero, whatever the usage is', () => {
    const names = [
      'prompt_tokens',
      'completion_tokens',
      'input_tokens',
      'output_tokens',
      'cached_tokens',
      'prompt_tokens_details',
      'input_tokens_details',
      'cache_creation',
      'cache_read_input_tokens',
      'reasoning_tokens',
      'ephemeral_5m_input_tokens',
      'total_tokens',
      'prompt_cache_hit_tokens',
      'prompt_cache_miss_tokens',
    ];
    const value = fc.oneof(fc.nat(), fc.jsonValue(), fc.double(), fc.maxSafeInteger());
    const usage = fc.dictionary(
      fc.constantFrom(...names),
      fc.oneof(value, fc.dictionary(fc.constantFrom(...names), value)),
    );
    fc.assert(
      fc.property(
        fc.constantFrom<Adapter>('openai', 'openai_responses', 'anthropic', 'openai_embeddings'),
        usage,
        (adapter, given) => {
          for (const count of Object.values(tokensOf(adapter, given) ?? {})) {
            expect(Number.isSafeInteger(count) && count > 0).toBe(true);
          }
        },
      ),
    );
  });
});

describe('finish reasons', () => {
  const reason = (adapter: Adapter, answer: unknown) => measure(adapter, answer).finishReason;

  test('each shape says it in its own place', () => {
    expect(reason('openai', { choices: [{ finish_reason: 'length' }, { finish_reason: 'stop' }] })).toBe('length');
    expect(reason('anthropic', { stop_reason: 'end_turn' })).toBe('end_turn');
    expect(reason('openai_responses', { status: 'completed', incomplete_details: null })).toBe('completed');
    expect(
      reason('openai_responses', { status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } }),
    ).toBe('max_output_tokens');
    expect(reason('openai_embeddings', { data: [] })).toBeNull();
  });

  test('what is no text is no reason, and text is cut', () => {
    for (const odd of [null, 7, {}, undefined]) expect(reason('anthropic', { stop_reason: odd })).toBeNull();
    expect(reason('openai', { choices: 'none' })).toBeNull();
    expect(reason('openai', { choices: [null] })).toBeNull();
    expect(reason('anthropic', { stop_reason: `a\u0000${'b'.repeat(500)}` })).toBe(`a\\u0000${'b'.repeat(126)}`);
    expect(reason('anthropic', { stop_reason: '' })).toBeNull();
  });
});

describe('large answers', () => {
  const json = fc.jsonValue({ maxDepth: 3 });

  test('are measured from their bytes as if they had been parsed', () => {
    const usage = fc.record({
      prompt_tokens: fc.nat(),
      completion_tokens: fc.nat(),
      input_tokens: fc.nat(),
      output_tokens: fc.nat(),
    });
    const choices = fc.oneof(json, fc.array(fc.record({ message: json, finish_reason: fc.oneof(fc.string(), json) })));
    const answer = fc.record(
      { id: json, choices, usage, status: json, incomplete_details: json, stop_reason: fc.string() },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(
        fc.constantFrom<Adapter>('openai', 'openai_responses', 'anthropic', 'openai_embeddings'),
        answer,
        fc.boolean(),
        (adapter, given, spaced) => {
          const text = JSON.stringify(given, null, spaced ? 2 : 0);
          expect(fromBytes(adapter, text)).toEqual(measure(adapter, JSON.parse(text)));
        },
      ),
      { numRuns: 500 },
    );
  });

  test('of duplicate members the last one counts', () => {
    const text =
      '{"usage":{"prompt_tokens":1},"choices":[{"finish_reason":"stop"}],"choices":[{}],"usage":{"prompt_tokens":2}}';
    expect(fromBytes('openai', text)).toEqual({ tokens: { input: 2 }, finishReason: null });
  });

  test('a usage as large as an answer is none', () => {
    const text = `{"usage":{"prompt_tokens":1,"more":"${'x'.repeat(70_000)}"}}`;
    expect(fromBytes('openai', text).tokens).toBeNull();
  });
});
