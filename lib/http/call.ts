import type { IncomingMessage } from 'node:http';
import { uuidv7 } from '../base/clock.ts';
import { type BodyFlow, bodyFlow } from '../runtime/body-flow.ts';
import { type ApiEvent, ownRequestId } from './event.ts';
import { hasBody } from './read-body.ts';
import type { BoundRoute } from './routes.ts';

/** One request on its way; what the access log tells of it. */
export interface HttpCall {
  method: string;
  path: string;
  query: string;
  requestId: string;
  /** The pattern, or `unmatched`. */
  route: string;
  status: number;
  batchId: string | undefined;
  startedAt: number;
  expectsContinue: boolean;
  /** The body, which waits until somebody takes or drains it; null without one. */
  body: BodyFlow | null;
  /** All of the answer was handed to the system. */
  sent: boolean;
  /** The answer was cut short by a fault of ours. */
  broken: boolean;
}

/** Reads the head of a request; the status is 499 until there is an answer. */
export function callOf(req: IncomingMessage, expectsContinue: boolean): HttpCall {
  const { path, query } = splitTarget(req.url ?? '/');
  const id = req.headers['x-request-id'];
  return {
    method: req.method ?? 'GET',
    path,
    query,
    requestId: ownRequestId(typeof id === 'string' ? id : undefined) ?? uuidv7(),
    route: 'unmatched',
    status: 499,
    batchId: undefined,
    startedAt: performance.now(),
    expectsContinue,
    body: hasBody(req) ? bodyFlow(req) : null,
    sent: false,
    broken: false,
  };
}

/** Path and query of a request target; the absolute form of proxies (`GET http://host/path`) loses its origin. */
function splitTarget(target: string): { path: string; query: string } {
  const origin = /^https?:\/\/[^/?#]*/i.exec(target);
  const local = origin ? target.slice(origin[0].length) || '/' : target;
  const mark = local.indexOf('?');
  return mark < 0 ? { path: local, query: '' } : { path: local.slice(0, mark), query: local.slice(mark + 1) };
}

/** The event that API Gateway would make of the request. */
export function eventOf(
  req: IncomingMessage,
  call: HttpCall,
  route: BoundRoute,
  parameters: Record<string, string>,
): ApiEvent {
  const routeKey = `${route.method} ${route.pattern}`;
  return {
    version: '2.0',
    routeKey,
    rawPath: call.path,
    rawQueryString: call.query,
    headers: req.headers as ApiEvent['headers'], // only `set-cookie` is a list, and no request has it
    pathParameters: parameters,
    isBase64Encoded: false,
    requestContext: {
      accountId: 'local',
      apiId: 'local',
      domainName: req.headers.host ?? '',
      domainPrefix: '',
      http: {
        method: call.method,
        path: call.path,
        protocol: `HTTP/${req.httpVersion}`,
        sourceIp: req.socket.remoteAddress ?? '',
        userAgent: req.headers['user-agent'] ?? '',
      },
      requestId: call.requestId,
      routeKey,
      stage: '$default',
      time: '',
      timeEpoch: 0,
    },
  };
}
