import type { ApiHandler } from './event.ts';

/** One line of a route table. `{name}` in a pattern takes exactly one non-empty segment. */
export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  pattern: string;
  /** Name of the handler; the composition root binds it. */
  handler: string;
  /** `read` gives the handler its bytes, `stream` as they come; otherwise whatever is sent is thrown away unread. */
  body?: 'read' | 'stream';
}

/**
 * The native API on the inference port ("Native routes" in docs/spec/native-api.md). Other surfaces and the control API
 * are tables of their own.
 */
export const NATIVE_ROUTES = [
  { method: 'GET', pattern: '/healthz', handler: 'health' },
  { method: 'POST', pattern: '/v1/batches', handler: 'submit', body: 'read' },
  { method: 'POST', pattern: '/v1/uploads', handler: 'upload', body: 'read' },
  { method: 'GET', pattern: '/v1/batches', handler: 'list' },
  { method: 'GET', pattern: '/v1/batches/{id}', handler: 'get' },
  { method: 'DELETE', pattern: '/v1/batches/{id}', handler: 'remove' },
  { method: 'GET', pattern: '/v1/batches/{id}/results', handler: 'results' },
  { method: 'POST', pattern: '/v1/batches/{id}/cancel', handler: 'cancel' },
] as const satisfies readonly Route[];

/** OpenAI's files ("File routes" in docs/spec/openai-surface.md); also below `/openai`. */
export const FILES_ROUTES = [
  { method: 'POST', pattern: '/v1/files', handler: 'createFile', body: 'stream' },
  { method: 'GET', pattern: '/v1/files', handler: 'listFiles' },
  { method: 'GET', pattern: '/v1/files/{id}', handler: 'getFile' },
  { method: 'DELETE', pattern: '/v1/files/{id}', handler: 'removeFile' },
  { method: 'GET', pattern: '/v1/files/{id}/content', handler: 'fileContent' },
] as const satisfies readonly Route[];

/** OpenAI's batches below `/openai`; at `/v1/batches` they share the native paths. */
export const OPENAI_BATCHES_ROUTES = [
  { method: 'POST', pattern: '/v1/batches', handler: 'createOpenaiBatch', body: 'read' },
  { method: 'GET', pattern: '/v1/batches', handler: 'listOpenaiBatches' },
  { method: 'GET', pattern: '/v1/batches/{id}', handler: 'getOpenaiBatch' },
  { method: 'POST', pattern: '/v1/batches/{id}/cancel', handler: 'cancelOpenaiBatch' },
] as const satisfies readonly Route[];

/** Anthropic's message batches ("Anthropic routes" in docs/spec/anthropic-surface.md); also below `/anthropic`. */
export const MESSAGE_BATCHES_ROUTES = [
  { method: 'POST', pattern: '/v1/messages/batches', handler: 'createMessageBatch', body: 'stream' },
  { method: 'GET', pattern: '/v1/messages/batches', handler: 'listMessageBatches' },
  { method: 'GET', pattern: '/v1/messages/batches/{id}', handler: 'getMessageBatch' },
  { method: 'DELETE', pattern: '/v1/messages/batches/{id}', handler: 'removeMessageBatch' },
  { method: 'GET', pattern: '/v1/messages/batches/{id}/results', handler: 'messageBatchResults' },
  { method: 'POST', pattern: '/v1/messages/batches/{id}/cancel', handler: 'cancelMessageBatch' },
] as const satisfies readonly Route[];

/** The same routes below a path of their own, for clients whose base URL has it. */
export function prefixed(prefix: string, table: readonly Route[]): Route[] {
  return table.map((route) => ({ ...route, pattern: prefix + route.pattern }));
}

export type NativeHandlerName = (typeof NATIVE_ROUTES)[number]['handler'];

/** A route with the function that serves it. */
export interface BoundRoute {
  method: Route['method'];
  pattern: string;
  run: ApiHandler;
  readsBody: boolean;
  streamsBody?: boolean;
}

/** Binds a table to its handlers; a name without one is a mistake in the code and throws. */
export function bindRoutes(table: readonly Route[], handlers: Readonly<Record<string, ApiHandler>>): BoundRoute[] {
  return table.map(({ method, pattern, handler, body }) => {
    const run = handlers[handler];
    if (run === undefined) throw new Error(`route ${method} ${pattern} has no handler "${handler}"`);
    return { method, pattern, run, readsBody: body === 'read', streamsBody: body === 'stream' };
  });
}

export type Match =
  | { kind: 'found'; route: BoundRoute; parameters: Record<string, string> }
  /** The path is known, the method is not: 405, or the answer to OPTIONS. `allow` is the header's value. */
  | { kind: 'method'; pattern: string; allow: string }
  | { kind: 'unknown' };

/**
 * Makes the look-up of a table. HEAD finds GET. Paths match byte for byte: a trailing slash, an empty segment or other
 * case is another, unknown path. Literal segments win over parameters; a segment that is no valid percent-encoding is unknown.
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
