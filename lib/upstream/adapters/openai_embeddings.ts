import { bearerHeaders } from './openai.ts';
import { type CallTarget, type TargetInput, targetUrl } from './target.ts';

/** Embeddings: `/v1/embeddings`, the key as a bearer. Only batches of the OpenAI surface reach it. */
export function openaiEmbeddingsTarget(input: TargetInput): CallTarget {
  return { url: targetUrl(input.host, '/v1/embeddings'), headers: bearerHeaders(input) };
}
