import type { Host, HostKey } from '../model/catalog.ts';

/** Where and with which headers a call goes; the same for every item of a (host, key, versions). */
export interface CallTarget {
  /** Absolute URL. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
}

/** The input of an adapter. `key` is null for a host that takes no credential. */
export interface TargetInput {
  host: Host;
  key: HostKey | null;
  /** As recorded on the batch at submit; used by the anthropic adapter only. */
  anthropicVersion: string | null;
  anthropicBeta: string | null;
}

/**
 * The host's base URL with its own `path`, or the adapter's, behind it: no doubled slash, and a base that ends in `/v1`
 * does not double the path's. Credentials, query and fragment of a base URL are dropped; a path may carry a query.
 * Throws TypeError for what is not a URL; the catalogue refuses that when it is applied.
 */
function targetUrl(host: Host, adapterPath: string): string {
  const base = new URL(host.baseURL);
  const prefix = base.pathname.replace(/\/+$/, '');
  const path = `/${(host.path ?? adapterPath).replace(/^\/+/, '')}`;
  const versioned = prefix.endsWith('/v1') && (path === '/v1' || path.startsWith('/v1/'));
  return base.origin + prefix + (versioned ? path.slice(3) : path);
}

/** The secret to send, or null: the host takes none, or the key has none (such a key is never drawn). */
function secretOf(input: TargetInput): string | null {
  return input.host.noAuth ? null : (input.key?.value ?? null);
}

/** Chat Completions: `/v1/chat/completions`, the key as a bearer. */
export function openaiTarget(input: TargetInput): CallTarget {
  return { url: targetUrl(input.host, '/v1/chat/completions'), headers: bearerHeaders(input) };
}

/** Headers of the whole OpenAI family. */
function bearerHeaders(input: TargetInput): Record<string, string> {
  const secret = secretOf(input);
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (secret !== null) headers.authorization = `Bearer ${secret}`;
  return headers;
}

/** Responses: `/v1/responses`, the key as a bearer. */
export function openaiResponsesTarget(input: TargetInput): CallTarget {
  return { url: targetUrl(input.host, '/v1/responses'), headers: bearerHeaders(input) };
}

/** Embeddings: `/v1/embeddings`, the key as a bearer. Only batches of the OpenAI surface reach it. */
export function openaiEmbeddingsTarget(input: TargetInput): CallTarget {
  return { url: targetUrl(input.host, '/v1/embeddings'), headers: bearerHeaders(input) };
}

/**
 * Sent when the batch recorded none: the API refuses a call without a version ("The upstream request" in
 * docs/spec/gateway-rules.md).
 */
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
