import { type CallTarget, secretOf, type TargetInput, targetUrl } from './target.ts';

/** Chat Completions: `/v1/chat/completions`, the key as a bearer. */
export function openaiTarget(input: TargetInput): CallTarget {
  return { url: targetUrl(input.host, '/v1/chat/completions'), headers: bearerHeaders(input) };
}

/** Headers of the whole OpenAI family. */
export function bearerHeaders(input: TargetInput): Record<string, string> {
  const secret = secretOf(input);
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (secret !== null) headers.authorization = `Bearer ${secret}`;
  return headers;
}
