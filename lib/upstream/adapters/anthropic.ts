import { type CallTarget, secretOf, type TargetInput, targetUrl } from './target.ts';

/** Sent when the batch recorded none: the API refuses a call without a version (behaviour section 4). */
const DEFAULT_VERSION = '2023-06-01';

/** Messages: `/v1/messages`, `x-api-key`, and the version and beta headers that the batch was submitted with. */
export function anthropicTarget(input: TargetInput): CallTarget {
  const secret = secretOf(input);
  const headers: Record<string, string> = {
    'content-type': 'application/json',
    'anthropic-version': input.anthropicVersion || DEFAULT_VERSION,
  };
  if (input.anthropicBeta) headers['anthropic-beta'] = input.anthropicBeta;
  if (secret !== null) headers['x-api-key'] = secret;
  return { url: targetUrl(input.host, '/v1/messages'), headers };
}
