import type Anthropic from '@anthropic-ai/sdk';
import { expect } from 'vitest';
import { eventually } from './calls.ts';
import { anthropicEnd, clientsOf, resultsOf, uuidOf } from './clients.ts';
import type { Deployment } from './setups.ts';

type Case = readonly [name: string, run: (setup: Deployment) => Promise<void>];

/** The most bytes of one answer of Lambda. */
const ANSWER_BYTES = 4_500_000;

const request = (id: string, model: string) => ({
  custom_id: id,
  params: { model, max_tokens: 16, messages: [{ role: 'user' as const, content: 'hi' }] },
});

const create = (client: Anthropic, requests: ReturnType<typeof request>[]) =>
  client.messages.batches.create({ requests });

const stateCount = async (setup: Deployment, id: string, condition: string) => {
  const text = `select count(*)::int as n from batch_items where batch_id = $1::uuid and ${condition}`;
  return (await setup.sql(text, [uuidOf(id)]))[0]!.n;
};

/** The cases of the official Anthropic client, the same wherever the service runs. */
export const ANTHROPIC_CASES: readonly Case[] = [
  [
    'runs a batch to results, and deletes it',
    async (setup) => {
      const { anthropic } = clientsOf(setup);
      const made = await create(anthropic, [request('a', 'any'), request('b', 'status-400'), request('c', 'any')]);
      expect(made).toMatchObject({
        type: 'message_batch',
        processing_status: 'in_progress',
        request_counts: { processing: 3, succeeded: 0, errored: 0, canceled: 0, expired: 0 },
        results_url: null,
      });
      await expect(anthropic.messages.batches.results(made.id)).rejects.toThrow('results_url');
      const done = await anthropicEnd(anthropic, made.id);
      expect(done.request_counts).toEqual({ processing: 0, succeeded: 2, errored: 1, canceled: 0, expired: 0 });
      expect(await resultsOf(anthropic, made.id)).toMatchObject([
        { custom_id: 'a', result: { type: 'succeeded', message: { type: 'message' } } },
        { custom_id: 'b', result: { type: 'errored', error: { error: { message: 'status 400 asked for' } } } },
        { custom_id: 'c', result: { type: 'succeeded' } },
      ]);
      expect((await anthropic.messages.batches.list({ limit: 1 })).data[0]!.id).toBe(made.id);
      const other = clientsOf(setup, 'bob').anthropic.messages.batches;
      await expect(other.retrieve(made.id)).rejects.toMatchObject({ status: 404 });
      await expect(other.cancel(made.id)).rejects.toMatchObject({ status: 404 });
      await expect(other.delete(made.id)).rejects.toMatchObject({ status: 404 });
      expect(await anthropic.messages.batches.delete(made.id)).toEqual({ id: made.id, type: 'message_batch_deleted' });
      await expect(anthropic.messages.batches.retrieve(made.id)).rejects.toMatchObject({ status: 404 });
    },
  ],
  [
    'cancels a batch that runs, and keeps what was finished',
    async (setup) => {
      const { anthropic } = clientsOf(setup);
      const { id } = await create(anthropic, [request('a', 'any'), request('b', 'hang')]);
      await eventually(
        () => stateCount(setup, id, "state = 'completed'"),
        (n) => n === 1,
      );
      await setup.upstream.waitForRequests(1, ({ model }) => model === 'hang');
      await expect(anthropic.messages.batches.delete(id)).rejects.toMatchObject({ status: 400 });
      expect(['canceling', 'ended']).toContain((await anthropic.messages.batches.cancel(id)).processing_status);
      const done = await anthropicEnd(anthropic, id);
      expect(done.request_counts).toEqual({ processing: 0, succeeded: 1, errored: 0, canceled: 1, expired: 0 });
      expect((await resultsOf(anthropic, id)).map(({ result }) => result.type)).toEqual(['succeeded', 'canceled']);
    },
  ],
  [
    'ends a batch that is cancelled while all of it waits',
    async (setup) => {
      const { anthropic } = clientsOf(setup);
      const { id } = await create(anthropic, [request('w', 'retry-after-3600')]);
      await eventually(
        () => stateCount(setup, id, 'not_before is not null'),
        (n) => n === 1,
      );
      await anthropic.messages.batches.cancel(id);
      const done = await anthropicEnd(anthropic, id);
      expect(done.request_counts).toEqual({ processing: 0, succeeded: 0, errored: 0, canceled: 1, expired: 0 });
    },
  ],
  [
    'expires what is not done when the window closes',
    async (setup) => {
      const { anthropic } = clientsOf(setup);
      const { id } = await create(anthropic, [request('a', 'any'), request('b', 'retry-after-3600')]);
      await eventually(
        () => stateCount(setup, id, 'not_before is not null'),
        (n) => n === 1,
      );
      await eventually(
        () => stateCount(setup, id, "state = 'completed'"),
        (n) => n === 1,
      );
      const closed = "update batches set expires_at = clock_timestamp() - interval '1 second' where id = $1::uuid";
      await setup.sql(closed, [uuidOf(id)]);
      await setup.sweep();
      const done = await anthropicEnd(anthropic, id);
      expect(done.request_counts).toEqual({ processing: 0, succeeded: 1, errored: 0, canceled: 0, expired: 1 });
      expect((await resultsOf(anthropic, id)).map(({ result }) => result.type)).toEqual(['succeeded', 'expired']);
    },
  ],
  [
    'gives results beyond what one answer of Lambda holds',
    async (setup) => {
      const { anthropic, redirected } = clientsOf(setup);
      const ids = ['1', '2', '3', '4', '5', '6'];
      const { id } = await create(
        anthropic,
        ids.map((one) => request(one, 'big-1')),
      );
      await anthropicEnd(anthropic, id);
      const results = await resultsOf(anthropic, id);
      expect(redirected()).toBe(setup.isLambda ? 1 : 0);
      expect(JSON.stringify(results).length).toBeGreaterThan(ANSWER_BYTES);
      expect(results.map(({ custom_id, result }) => [custom_id, result.type])).toEqual(
        ids.map((one) => [one, 'succeeded']),
      );
    },
  ],
  [
    'makes a batch of an upload, which goes past the platform, once',
    async (setup) => {
      const { anthropic } = clientsOf(setup);
      const requests = Array.from({ length: 50 }, (_, i) => request(`u${i}`, 'any'));
      const text = JSON.stringify({ requests });
      const announced = await anthropic.post<{ upload_url: string; upload_id: string }>('/v1/uploads', {
        body: { bytes: Buffer.byteLength(text) },
      });
      const body = { upload_id: announced.upload_id } as unknown as Anthropic.Messages.BatchCreateParams;
      await expect(anthropic.messages.batches.create(body)).rejects.toMatchObject({ status: 409 });
      expect((await fetch(announced.upload_url, { method: 'PUT', body: text })).status).toBe(200);
      const { id, request_counts } = await anthropic.messages.batches.create(body);
      expect(request_counts.processing).toBe(50);
      await expect(anthropic.messages.batches.create(body)).rejects.toMatchObject({ status: 409 });
      await anthropicEnd(anthropic, id);
      const results = await resultsOf(anthropic, id);
      expect(results.map(({ custom_id, result }) => [custom_id, result.type])).toEqual(
        requests.map(({ custom_id }) => [custom_id, 'succeeded']),
      );
    },
  ],
];
