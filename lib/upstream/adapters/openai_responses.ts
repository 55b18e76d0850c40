import { bearerHeaders } from './openai.ts';
import { type CallTarget, type TargetInput, targetUrl } from './target.ts';

/** Responses: `/v1/responses`, the key as a bearer. */
export function openaiResponsesTarget(input: TargetInput): CallTarget {
  return { url: targetUrl(input.host, '/v1/responses'), headers: bearerHeaders(input) };
}
