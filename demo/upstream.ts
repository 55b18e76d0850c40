import { createServer, type IncomingMessage, type Server } from 'node:http';
import { answerFor, errorFor } from './answers.ts';

/** The behaviour of the demo upstream. Rates are fractions of all calls, 0 to 1. */
export interface DemoUpstreamOptions {
  /** 0 takes a free port. */
  port: number;
  host: string;
  /** Latency is spread evenly between these, in ms. */
  minLatencyMs: number;
  maxLatencyMs: number;
  rate429: number;
  rate500: number;
  /** 0 <= random() < 1. */
  random(): number;
}

/** A few faults and a little latency: a demo shows retries and states without being slow. */
export const DEMO_UPSTREAM: DemoUpstreamOptions = {
  port: 0,
  host: '127.0.0.1',
  minLatencyMs: 20,
  maxLatencyMs: 120,
  rate429: 0.02,
  rate500: 0.02,
  random: Math.random,
};

/**
 * The upstream of `npm run demo`: speaks chat completions, responses, messages and embeddings, and accepts any key.
 * Resolves when it listens; rejects if the address is in use.
 */
export async function startDemoUpstream(options: DemoUpstreamOptions): Promise<Server> {
  const server = createServer(async (request, response) => {
    const path = request.url ?? '/';
    const question = await readQuestion(request).catch(() => null);
    const latencyMs = options.minLatencyMs + options.random() * (options.maxLatencyMs - options.minLatencyMs);
    await new Promise((resolve) => setTimeout(resolve, latencyMs));
    const { status, body, headers } = reply(options, path, question);
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify(body));
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port, options.host, resolve);
  });
  return server;
}

interface Question {
  model: string;
  bytes: number;
}

function reply(
  options: DemoUpstreamOptions,
  path: string,
  question: Question | null,
): { status: number; body: object; headers?: Record<string, string> } {
  if (question === null) {
    return { status: 400, body: errorFor(path, 'invalid_request_error', 'the body is not a JSON object with a model') };
  }
  const dice = options.random();
  if (dice < options.rate429) {
    const body = errorFor(path, 'rate_limit_error', 'slow down');
    return { status: 429, body, headers: { 'retry-after': '1' } };
  }
  if (dice < options.rate429 + options.rate500) {
    return { status: 500, body: errorFor(path, 'api_error', 'the demo upstream failed on purpose') };
  }
  // About four characters make a token: the figures then look right in a usage summary.
  const usage = { input: Math.ceil(question.bytes / 4), output: 8 + Math.floor(options.random() * 40) };
  const body = answerFor(path, question.model, 'An answer of the demo upstream.', usage);
  return body === null
    ? { status: 404, body: errorFor(path, 'not_found_error', 'no such path') }
    : { status: 200, body };
}

async function readQuestion(request: IncomingMessage): Promise<Question | null> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const bytes = Buffer.concat(chunks);
  const body: unknown = JSON.parse(bytes.toString());
  if (typeof body !== 'object' || body === null || !('model' in body) || typeof body.model !== 'string') return null;
  return { model: body.model, bytes: bytes.length };
}
