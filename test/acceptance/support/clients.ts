import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { plaintextOf } from '../../support/auth-catalog.ts';
import { eventually } from './calls.ts';
import type { Deployment } from './setups.ts';

/** The official clients on a deployment, with only base URL, key and the way of requests changed. */
export interface Clients {
  openai: OpenAI;
  anthropic: Anthropic;
  /** How many answers sent the client on to the payload store. */
  redirected(): number;
}

/** Nothing listens there: what a client asks for goes through `Deployment.call`. */
const ORIGIN = 'http://relay.invalid';

/** Clients with the key of that name. */
export function clientsOf(setup: Deployment, as = 'ann'): Clients {
  let redirected = 0;
  const bridge = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const request = new Request(input, init);
    const { pathname, search } = new URL(request.url);
    const body = request.body === null ? null : Buffer.from(await request.arrayBuffer());
    const answer = await setup.call({
      method: request.method,
      path: pathname + search,
      as: null,
      headers: Object.fromEntries(request.headers),
      ...(body === null ? {} : { body }),
    });
    if (answer.status === 303) {
      redirected++;
      // As fetch does it: a GET, and of all headers only this one does not go to another origin.
      const headers = new Headers(request.headers);
      headers.delete('authorization');
      return fetch(answer.headers.get('location')!, { headers });
    }
    return new Response(answer.bytes.length === 0 ? null : new Uint8Array(answer.bytes), answer);
  };
  const options = { apiKey: plaintextOf(as), maxRetries: 0, fetch: bridge };
  return {
    openai: new OpenAI({ ...options, baseURL: `${ORIGIN}/v1` }),
    anthropic: new Anthropic({ ...options, baseURL: ORIGIN }),
    redirected: () => redirected,
  };
}

const FINAL = ['completed', 'failed', 'expired', 'cancelled'];

/** Resolves with the batch once it is final. */
export const openaiEnd = (client: OpenAI, id: string, withinMs?: number) =>
  eventually(
    () => client.batches.retrieve(id),
    ({ status }) => FINAL.includes(status),
    withinMs,
  );

/** Resolves with the batch once it has ended. */
export const anthropicEnd = (client: Anthropic, id: string, withinMs?: number) =>
  eventually(
    () => client.messages.batches.retrieve(id),
    ({ processing_status: status }) => status === 'ended',
    withinMs,
  );

/** The lines of a result file, parsed. */
// biome-ignore lint/suspicious/noExplicitAny: tests look into lines of many forms
export async function linesOf(client: OpenAI, fileId: string): Promise<any[]> {
  const text = await (await client.files.content(fileId)).text();
  if (!text.endsWith('\n')) throw new Error('the last line is not ended');
  return text
    .slice(0, -1)
    .split('\n')
    .map((line) => JSON.parse(line));
}

/** The results of a message batch, decoded by the client. */
export async function resultsOf(client: Anthropic, id: string) {
  const results: Anthropic.Messages.MessageBatchIndividualResponse[] = [];
  for await (const one of await client.messages.batches.results(id)) results.push(one);
  return results;
}

/** The core's id of a batch of either surface. */
export function uuidOf(id: string): string {
  return id.replace(/^(batch_|msgbatch_01)/, '').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
