import { ApiError } from '../base/errors.ts';
import type { ApiEvent, ApiHandler } from './event.ts';

/** Where an endpoint is. `{name}` in a pattern takes exactly one non-empty segment. */
export interface HttpRoute {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly pattern: string;
  /** `read` hands the body to the handler as bytes, `stream` as it comes; otherwise it is thrown away unread. */
  readonly body?: 'read' | 'stream';
  /** Largest body that is read, bytes; without it the adapter's own limit holds. */
  readonly maxBytes?: number;
}

/** A route with the function that serves it. */
export interface BoundRoute extends HttpRoute {
  readonly run: ApiHandler;
  /** Asked before the body is read: the owner who sends it, by the headers. Throws ApiError. */
  readonly admit?: (event: ApiEvent) => Promise<string>;
}

export type Match =
  | { kind: 'found'; route: BoundRoute; parameters: Record<string, string> }
  /** The path is known, the method is not: 405, or the answer to OPTIONS. `allow` is the header's value. */
  | { kind: 'method'; pattern: string; allow: string }
  | { kind: 'unknown' };

/**
 * Makes the look-up of a table. HEAD finds GET. Paths match byte for byte: a trailing slash, an empty segment or other
 * case is another, unknown path. Literal segments win over parameters; a segment with an invalid percent-encoding is unknown.
 */
export function createMatcher(routes: readonly BoundRoute[]): (method: string, path: string) => Match {
  const patterns = new Map<string, Pattern>();
  for (const route of routes) {
    const known = patterns.get(route.pattern);
    if (known) known.routes.push(route);
    else patterns.set(route.pattern, { segments: route.pattern.split('/'), routes: [route] });
  }
  const ordered = [...patterns.values()].sort((a, b) => wildness(a) - wildness(b));

  return (method, path) => {
    const segments = path.split('/');
    for (const pattern of ordered) {
      const parameters = match(pattern.segments, segments);
      if (parameters === null) continue;
      const wanted = method === 'HEAD' ? 'GET' : method;
      const route = pattern.routes.find((r) => r.method === wanted);
      if (route) return { kind: 'found', route, parameters };
      return { kind: 'method', pattern: pattern.routes[0]!.pattern, allow: allowOf(pattern.routes) };
    }
    return { kind: 'unknown' };
  };
}

interface Pattern {
  segments: string[];
  routes: BoundRoute[];
}

function wildness(pattern: Pattern): number {
  return pattern.segments.filter((s) => s.startsWith('{')).length;
}

function match(pattern: string[], segments: string[]): Record<string, string> | null {
  if (pattern.length !== segments.length) return null;
  const parameters: Record<string, string> = {};
  for (let i = 0; i < pattern.length; i++) {
    const want = pattern[i]!;
    const have = segments[i]!;
    if (want.startsWith('{')) {
      const value = decode(have);
      if (!value) return null;
      parameters[want.slice(1, -1)] = value;
    } else if (want !== have) return null;
  }
  return parameters;
}

function decode(segment: string): string | null {
  try {
    return decodeURIComponent(segment);
  } catch {
    return null;
  }
}

function allowOf(routes: readonly BoundRoute[]): string {
  const methods = new Set<string>();
  for (const { method } of routes) {
    methods.add(method);
    if (method === 'GET') methods.add('HEAD');
  }
  return [...methods, 'OPTIONS'].join(', ');
}

/** Paths that clients ask for when their base URL lacks its `/v1`, or has it twice. */
const WITHOUT_VERSION = /^(?:\/openai|\/anthropic)?\/(?:files|batches|messages\/batches)(?:\/|$)/;
const TWO_VERSIONS = /^(?:\/openai|\/anthropic)?\/v1\/v1(?:\/|$)/;

/** The 404 of a path that no route has. It says so when only the base URL is wrong. */
export function unknownPath(path: string): ApiError {
  if (WITHOUT_VERSION.test(path)) return new ApiError('not_found', 'not found: the base URL must end in /v1');
  if (TWO_VERSIONS.test(path)) return new ApiError('not_found', 'not found: the base URL must not end in /v1');
  return new ApiError('not_found');
}
