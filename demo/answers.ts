/** The token counts of a made-up answer. */
export interface FakeUsage {
  input: number;
  output: number;
  cached?: number;
  reasoning?: number;
}

const USAGE: FakeUsage = { input: 12, output: 9 };

/** An answer of `/v1/chat/completions`, as the OpenAI API documents it, with all parts of its usage object. */
export function chatCompletion(model: string, text = 'Hello from the upstream.', usage: FakeUsage = USAGE): object {
  return {
    id: 'chatcmpl-fake',
    object: 'chat.completion',
    created: 1_764_000_000,
    model,
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: text, refusal: null },
        logprobs: null,
        finish_reason: 'stop',
      },
    ],
    usage: {
      prompt_tokens: usage.input,
      completion_tokens: usage.output,
      total_tokens: usage.input + usage.output,
      prompt_tokens_details: { cached_tokens: usage.cached ?? 0, audio_tokens: 0 },
      completion_tokens_details: {
        reasoning_tokens: usage.reasoning ?? 0,
        audio_tokens: 0,
        accepted_prediction_tokens: 0,
        rejected_prediction_tokens: 0,
      },
    },
    service_tier: 'default',
    system_fingerprint: null,
  };
}

/** An answer of `/v1/responses`; `error` is present and null, as the real API sends it. */
export function responsesAnswer(model: string, text = 'Hello from the upstream.', usage: FakeUsage = USAGE): object {
  return {
    id: 'resp_fake',
    object: 'response',
    created_at: 1_764_000_000,
    status: 'completed',
    error: null,
    incomplete_details: null,
    model,
    output: [
      {
        type: 'message',
        id: 'msg_fake',
        status: 'completed',
        role: 'assistant',
        content: [{ type: 'output_text', text, annotations: [] }],
      },
    ],
    usage: {
      input_tokens: usage.input,
      input_tokens_details: { cached_tokens: usage.cached ?? 0 },
      output_tokens: usage.output,
      output_tokens_details: { reasoning_tokens: usage.reasoning ?? 0 },
      total_tokens: usage.input + usage.output,
    },
  };
}

/** An answer of `/v1/messages`; its `input_tokens` are without the cached ones, as the Anthropic API counts them. */
export function anthropicMessage(model: string, text = 'Hello from the upstream.', usage: FakeUsage = USAGE): object {
  return {
    id: 'msg_fake',
    type: 'message',
    role: 'assistant',
    model,
    content: [{ type: 'text', text }],
    stop_reason: 'end_turn',
    stop_sequence: null,
    usage: {
      input_tokens: usage.input - (usage.cached ?? 0),
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: usage.cached ?? 0,
      output_tokens: usage.output,
      service_tier: 'standard',
    },
  };
}

/** An answer of `/v1/embeddings` with one small vector. */
export function embeddings(model: string, usage: FakeUsage = USAGE): object {
  return {
    object: 'list',
    data: [{ object: 'embedding', index: 0, embedding: [0.0023, -0.0093, 0.0158, -0.0041] }],
    model,
    usage: { prompt_tokens: usage.input, total_tokens: usage.input },
  };
}

/** Returns the answer that fits the path of a request; null for a path that no adapter uses. */
export function answerFor(path: string, model: string, text?: string, usage?: FakeUsage): object | null {
  if (path.endsWith('/chat/completions')) return chatCompletion(model, text, usage);
  if (path.endsWith('/responses')) return responsesAnswer(model, text, usage);
  if (path.endsWith('/messages')) return anthropicMessage(model, text, usage);
  if (path.endsWith('/embeddings')) return embeddings(model, usage);
  return null;
}

/** Returns an error body in the form of the path's API. */
export function errorFor(path: string, type: string, message: string): object {
  const error = { type, message, param: null, code: null };
  return path.endsWith('/messages') ? { type: 'error', error: { type, message } } : { error };
}
