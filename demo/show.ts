import { createProgress, finalOf } from './progress.ts';

/** The address of the demo's service, and how to speak to it. */
export interface Service {
  url: string;
  controlUrl: string;
  key: string;
  adminToken: string;
  /** Aborts if the demo must end early. */
  signal: AbortSignal;
}

const ITEMS = 300;
const POLL_MS = 150;

interface Batch {
  TotalItems: number;
  CreatedAt: string;
  CompletedAt: string | null;
  counts: Record<string, number>;
}

/** Submits a batch and shows its progress and its outcome on standard output. Throws if anything is not as expected. */
export async function show(service: Service): Promise<void> {
  const { id, total_items: total } = await call<{ id: string; total_items: number }>(
    service,
    '/v1/batches',
    question(),
  );
  say(`POST /v1/batches answered 202: ${total} items, batch ${id}\n`);

  const batch = await watch(service, id, total);
  const seconds = (Date.parse(batch.CompletedAt!) - Date.parse(batch.CreatedAt)) / 1000;
  say(`\nAll items are final after ${seconds.toFixed(1)} s: ${inWords(batch.counts)}`);

  const { results } = await call<{ results: object[] }>(service, `/v1/batches/${id}/results?limit=2`);
  say(`\nGET /v1/batches/${id}/results?limit=2`);
  for (const result of results) say(`  ${shorten(JSON.stringify(result), 160)}`);
  if (batch.counts.discarded) {
    const failed = await call<{ results: { idx: number; error: string }[] }>(
      service,
      `/v1/batches/${id}/results?state=discarded&limit=2`,
    );
    say('\nSome items failed, as the upstream did on purpose:');
    for (const { idx, error } of failed.results) say(`  ${idx}: ${error}`);
  }
  await showUsage(service, id);
}

async function watch(service: Service, id: string, total: number): Promise<Batch> {
  const progress = createProgress(process.stdout, total);
  try {
    for (;;) {
      const batch = await call<Batch>(service, `/v1/batches/${id}?items=false`);
      progress.show(batch.counts);
      if (batch.CompletedAt !== null) {
        if (finalOf(batch.counts) !== total) throw new Error(`${total} items, but ${JSON.stringify(batch.counts)}`);
        return batch;
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  } finally {
    progress.end();
  }
}

async function showUsage(service: Service, id: string): Promise<void> {
  const query = `group_by=model&group_by=host&batch_id=${id}`;
  const url = `${service.controlUrl}/api/usage/summary?${query}`;
  const response = await fetch(url, {
    headers: { authorization: `Bearer ${service.adminToken}` },
    signal: service.signal,
  });
  if (!response.ok) throw new Error(`the usage summary answered ${response.status}: ${await response.text()}`);
  const summary = (await response.json()) as {
    rows: {
      group: Record<string, string>;
      requests: number;
      tokens: Record<string, number>;
      cost_nanos: number | null;
    }[];
  };
  say('\nUsage, as the control API sums it up:');
  for (const { group, requests, tokens, cost_nanos } of summary.rows) {
    const cost = cost_nanos === null ? 'unpriced' : `${(Number(cost_nanos) / 1e9).toFixed(6)} USD`;
    const counted = `${tokens.input ?? 0} input and ${tokens.output ?? 0} output tokens`;
    say(`  ${group.model ?? 'no model'} on ${group.host ?? 'no host'}: ${requests} items, ${counted}, ${cost}`);
  }
}

function question(): object {
  const requests = Array.from({ length: ITEMS }, (_, i) => ({
    model: 'demo-small',
    messages: [{ role: 'user', content: `What is ${i} times ${i + 1}?` }],
    max_tokens: 64,
  }));
  return { shape: 'openai', requests };
}

async function call<T>(service: Service, path: string, body?: object): Promise<T> {
  const response = await fetch(service.url + path, {
    method: body === undefined ? 'GET' : 'POST',
    headers: { authorization: `Bearer ${service.key}` },
    signal: service.signal,
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  if (!response.ok) throw new Error(`${path} answered ${response.status}: ${await response.text()}`);
  return (await response.json()) as T;
}

function inWords(counts: Record<string, number>): string {
  return Object.entries(counts)
    .map(([state, count]) => `${count} ${state}`)
    .join(', ');
}

function shorten(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, length)} ...`;
}

/** Prints one line on standard output. */
export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}
