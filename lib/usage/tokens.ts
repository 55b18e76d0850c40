import { TOKEN_PARTS, type TokenCounts, type TokenPart } from '../model/usage-event.ts';
import type { CallRequest } from '../upstream/call-result.ts';

type Fields = Readonly<Record<string, unknown>>;

const NO_FIELDS: Fields = {};

/** NaN marks an odd value: sums carry it on, and no sum of whole counts is ever NaN. */
const ODD = Number.NaN;

/** Null says the same as absent. */
function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

/** An absent count is 0, and so is null. Text, fractions, negative numbers and everything above 2^53-1 are odd. */
function count(value: unknown): number {
  if (!isGiven(value)) return 0;
  return Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : ODD;
}

/** A group of counts inside the usage object. OpenAI-compatible servers send null for one that they do not keep. */
function group(value: unknown): Fields | null {
  if (!isGiven(value)) return NO_FIELDS;
  return typeof value === 'object' && !Array.isArray(value) ? (value as Fields) : null;
}

type Row = Record<TokenPart, number>;

/** Returns the row without its zeros; null when a value is odd or the prompt's parts do not add up below 2^53. */
function finish(row: Row): TokenCounts | null {
  const prompt = row.input + row.cache_read + row.cache_creation + row.cache_creation_5m + row.cache_creation_1h;
  if (!Number.isSafeInteger(prompt)) return null;
  const tokens: TokenCounts = {};
  for (const part of TOKEN_PARTS) {
    const n = row[part];
    if (n > 0) tokens[part] = n;
    else if (n !== 0) return null;
  }
  return tokens;
}

function emptyRow(): Row {
  return {
    input: 0,
    output: 0,
    cache_read: 0,
    cache_creation: 0,
    cache_creation_5m: 0,
    cache_creation_1h: 0,
    reasoning: 0,
    audio_input: 0,
    audio_output: 0,
    accepted_prediction: 0,
    rejected_prediction: 0,
    server_tool_use: 0,
  };
}

/**
 * Chat Completions: `prompt_tokens` holds the cached and the newly cached tokens, which are taken out. Providers name them
 * in different ways: DeepSeek has `prompt_cache_hit_tokens`, Moonshot and Together `cached_tokens` beside the prompt,
 * gateways to Anthropic that API's own names.
 */
function openai(usage: Fields): TokenCounts | null {
  const prompt = group(usage.prompt_tokens_details);
  const completion = group(usage.completion_tokens_details);
  if (prompt === null || completion === null) return null;
  const row = emptyRow();
  row.cache_read = count(
    prompt.cached_tokens ?? usage.prompt_cache_hit_tokens ?? usage.cached_tokens ?? usage.cache_read_input_tokens,
  );
  row.cache_creation = count(
    prompt.cache_write_tokens ?? prompt.cache_creation_tokens ?? usage.cache_creation_input_tokens,
  );
  row.audio_input = count(prompt.audio_tokens);
  row.audio_output = count(completion.audio_tokens);
  row.accepted_prediction = count(completion.accepted_prediction_tokens);
  row.rejected_prediction = count(completion.rejected_prediction_tokens);
  // Perplexity bills them, and no meter has them: the price is unknown.
  if (count(usage.citation_tokens) !== 0) return null;
  return finishWhole(row, {
    prompt: usage.prompt_tokens ?? missedAndHit(usage),
    output: usage.completion_tokens,
    total: usage.total_tokens,
    reasoning: completion.reasoning_tokens,
  });
}

/** DeepSeek splits the prompt into what the cache had and what it missed. */
function missedAndHit({ prompt_cache_hit_tokens: hit, prompt_cache_miss_tokens: missed }: Fields): unknown {
  return isGiven(missed) ? count(hit) + count(missed) : null;
}

/** Embeddings have a prompt only; Voyage has only the total. */
function embeddings(usage: Fields): TokenCounts | null {
  const prompt = group(usage.prompt_tokens_details);
  if (prompt === null) return null;
  const row = emptyRow();
  row.cache_read = count(prompt.cached_tokens);
  row.audio_input = count(prompt.audio_tokens);
  row.input = count(usage.prompt_tokens ?? usage.total_tokens) - row.cache_read;
  row.output = count(usage.completion_tokens);
  return finish(row);
}

function responses(usage: Fields): TokenCounts | null {
  const input = group(usage.input_tokens_details);
  const output = group(usage.output_tokens_details);
  if (input === null || output === null) return null;
  const row = emptyRow();
  row.cache_read = count(input.cached_tokens);
  row.cache_creation = count(input.cache_write_tokens);
  return finishWhole(row, {
    prompt: usage.input_tokens,
    output: usage.output_tokens,
    total: usage.total_tokens,
    reasoning: output.reasoning_tokens,
  });
}

/** The whole counts of an answer, as given. */
interface Wholes {
  prompt: unknown;
  output: unknown;
  total: unknown;
  reasoning: unknown;
}

/**
 * Sets input, output and reasoning. The total says what stands beside prompt and output instead of inside: reasoning (xAI),
 * or cached tokens (some gateways to Anthropic). Gemini has its reasoning in the total alone. What the total does not have
 * stands inside, and is not counted twice. A prompt or an output that is missing is what the total has beyond the other.
 */
function finishWhole(row: Row, given: Wholes): TokenCounts | null {
  const cached = row.cache_read + row.cache_creation;
  const total = count(given.total);
  row.reasoning = count(given.reasoning);
  let prompt = count(given.prompt);
  row.output = count(given.output);
  if (!isGiven(given.prompt)) prompt = Math.max(cached, total - row.output);
  else if (!isGiven(given.output)) row.output = Math.max(0, total - prompt);

  const beside = total - prompt - row.output;
  const isCacheBeside =
    cached > 0 && beside !== row.reasoning && (beside === cached || beside === cached + row.reasoning);
  row.input = isCacheBeside ? prompt : prompt - cached;
  if (row.reasoning > 0 && (beside === row.reasoning || beside === cached + row.reasoning)) {
    row.output += row.reasoning;
  } else if (beside > 0 && !isCacheBeside && !isGiven(given.reasoning)) {
    row.output += beside;
    row.reasoning = beside;
  }
  return finish(row);
}

/**
 * `input_tokens` is already without the cache; of server tools only web searches are charged for, so they are the
 * count.
 */
function anthropic(usage: Fields): TokenCounts | null {
  const output = group(usage.output_tokens_details);
  const written = group(usage.cache_creation);
  const tools = group(usage.server_tool_use);
  if (output === null || written === null || tools === null) return null;
  const row = emptyRow();
  row.input = count(usage.input_tokens);
  row.output = count(usage.output_tokens);
  row.cache_read = count(usage.cache_read_input_tokens);
  row.cache_creation_5m = count(written.ephemeral_5m_input_tokens);
  row.cache_creation_1h = count(written.ephemeral_1h_input_tokens);
  row.cache_creation = unsplit(count(usage.cache_creation_input_tokens), written, row);
  row.reasoning = count(output.thinking_tokens);
  row.server_tool_use = count(tools.web_search_requests);
  return finish(row);
}

/** The part of the total beyond the two lifetimes. If both are given, they replace the total. */
function unsplit(total: number, written: Fields, row: Row): number {
  const split = row.cache_creation_5m + row.cache_creation_1h;
  if (Number.isNaN(split)) return ODD;
  const both = isGiven(written.ephemeral_5m_input_tokens) && isGiven(written.ephemeral_1h_input_tokens);
  if (both && split > 0) return Number.isNaN(total) ? ODD : 0;
  return total < split ? 0 : total - split;
}

const READERS: Record<CallRequest['adapter'], (usage: Fields) => TokenCounts | null> = {
  openai,
  openai_embeddings: embeddings,
  openai_responses: responses,
  anthropic,
};

/** At least one of these must be there. Anthropic's cache counts stand on their own, beside `input_tokens`. */
const WHOLES: Record<CallRequest['adapter'], readonly string[]> = {
  openai: ['prompt_tokens', 'completion_tokens', 'prompt_cache_miss_tokens'],
  openai_embeddings: ['prompt_tokens', 'total_tokens'],
  openai_responses: ['input_tokens', 'output_tokens'],
  anthropic: ['input_tokens', 'output_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens'],
};

/**
 * The token counts of an upstream's `usage` value ("Token counts" in docs/spec/gateway-rules.md): input, cache_read and
 * cache_creation disjoint, zeros left out. Null when nothing can be priced. No object, an object of which no count is
 * known, or an odd value in it (text, negative, a fraction, above 2^53-1, or parts larger than their prompt).
 */
export function tokensOf(adapter: CallRequest['adapter'], usage: unknown): TokenCounts | null {
  if (typeof usage !== 'object' || usage === null || Array.isArray(usage)) return null;
  const fields = usage as Fields;
  if (!WHOLES[adapter].some((name) => isGiven(fields[name]))) return null;
  return READERS[adapter](fields);
}
