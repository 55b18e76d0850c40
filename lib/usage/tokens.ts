import { TOKEN_PARTS, type TokenCounts, type TokenPart } from '../model/usage-event.ts';
import type { CallRequest } from '../upstream/call-result.ts';

type Fields = Readonly<Record<string, unknown>>;

const NO_FIELDS: Fields = {};

/** NaN marks an odd value: sums carry it on, and no sum of whole counts is ever NaN. */
const ODD = Number.NaN;

/** An absent count is 0. Text, null, fractions, negative numbers and everything above 2^53-1 are odd. */
function count(value: unknown): number {
  if (value === undefined) return 0;
  return Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : ODD;
}

/** Anthropic's SDK documents the two cache counts as `number | null`: null says the same as absent there. */
function countOrNull(value: unknown): number {
  return value === null ? 0 : count(value);
}

/** A group of counts inside the usage object. OpenAI-compatible servers send null for one that they do not keep. */
function group(value: unknown): Fields | null {
  if (value === undefined || value === null) return NO_FIELDS;
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

/** Chat Completions, and embeddings: `prompt_tokens` holds the cached and the newly cached tokens, which are taken out. */
function openai(usage: Fields): TokenCounts | null {
  const prompt = group(usage.prompt_tokens_details);
  const completion = group(usage.completion_tokens_details);
  if (prompt === null || completion === null) return null;
  const row = emptyRow();
  row.cache_read = count(prompt.cached_tokens);
  row.cache_creation = count(prompt.cache_write_tokens);
  row.audio_input = count(prompt.audio_tokens);
  row.input = count(usage.prompt_tokens) - row.cache_read - row.cache_creation;
  row.output = count(usage.completion_tokens);
  row.reasoning = count(completion.reasoning_tokens);
  row.audio_output = count(completion.audio_tokens);
  row.accepted_prediction = count(completion.accepted_prediction_tokens);
  row.rejected_prediction = count(completion.rejected_prediction_tokens);
  return finish(row);
}

function responses(usage: Fields): TokenCounts | null {
  const input = group(usage.input_tokens_details);
  const output = group(usage.output_tokens_details);
  if (input === null || output === null) return null;
  const row = emptyRow();
  row.cache_read = count(input.cached_tokens);
  row.cache_creation = count(input.cache_write_tokens);
  row.input = count(usage.input_tokens) - row.cache_read - row.cache_creation;
  row.output = count(usage.output_tokens);
  row.reasoning = count(output.reasoning_tokens);
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
  row.cache_read = countOrNull(usage.cache_read_input_tokens);
  row.cache_creation_5m = count(written.ephemeral_5m_input_tokens);
  row.cache_creation_1h = count(written.ephemeral_1h_input_tokens);
  row.cache_creation = unsplit(countOrNull(usage.cache_creation_input_tokens), written, row);
  row.reasoning = count(output.thinking_tokens);
  row.server_tool_use = count(tools.web_search_requests);
  return finish(row);
}

/** The part of the total beyond the two lifetimes. If both are given, they replace the total. */
function unsplit(total: number, written: Fields, row: Row): number {
  const split = row.cache_creation_5m + row.cache_creation_1h;
  if (Number.isNaN(split)) return ODD;
  const both = written.ephemeral_5m_input_tokens !== undefined && written.ephemeral_1h_input_tokens !== undefined;
  if (both && split > 0) return Number.isNaN(total) ? ODD : 0;
  return total < split ? 0 : total - split;
}

const READERS: Record<CallRequest['adapter'], (usage: Fields) => TokenCounts | null> = {
  openai,
  openai_embeddings: openai,
  openai_responses: responses,
  anthropic,
};

/**
 * The token counts of an upstream's `usage` value ("Token counts" in docs/spec/gateway-rules.md): input, cache_read and
 * cache_creation disjoint, zeros left out. Null when nothing can be priced. No object, an object of which no count is
 * known, or an odd value in it (text, negative, a fraction, null, above 2^53-1, or parts larger than their prompt).
 */
export function tokensOf(adapter: CallRequest['adapter'], usage: unknown): TokenCounts | null {
  if (typeof usage !== 'object' || usage === null || Array.isArray(usage)) return null;
  const fields = usage as Fields;
  const known = adapter === 'openai' || adapter === 'openai_embeddings' ? CHAT_WHOLES : OTHER_WHOLES;
  if (fields[known[0]] === undefined && fields[known[1]] === undefined && !hasCache(adapter, fields)) return null;
  return READERS[adapter](fields);
}

const CHAT_WHOLES = ['prompt_tokens', 'completion_tokens'] as const;
const OTHER_WHOLES = ['input_tokens', 'output_tokens'] as const;

/** Anthropic's cache counts stand on their own, beside `input_tokens`. */
function hasCache(adapter: CallRequest['adapter'], usage: Fields): boolean {
  if (adapter !== 'anthropic') return false;
  return usage.cache_read_input_tokens !== undefined || usage.cache_creation_input_tokens !== undefined;
}
