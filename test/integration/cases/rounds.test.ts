import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { BOUNDARY, formOf } from '../../support/files-form.ts';
import { WAYS, type Way } from '../../support/native-api.ts';
import { type Service, startService } from '../../support/service.ts';
import { sendStatus } from '../../support/upstream-directives.ts';

// How often an item of the SDK surfaces is tried ("How items of the SDK surfaces run" in docs/spec/openai-surface.md).

let service: Service;

beforeEach(async () => {
  service.upstream.forget();
  service.upstream.answerWith(null);
  for (const table of ['batch_items', 'batches']) await service.sql(`delete from ${table}`);
  await service.sql('delete from usage_events');
});

const KEYED_ANTHROPIC = `---
kind: Binding
metadata: {name: keyed-anthropic}
spec: {model: keyed, host: keyed, adapter: anthropic}
`;

/** Creates a batch of one item a model; the names of the models are the ids. */
const SURFACES: Record<string, (way: Way, models: readonly string[]) => Promise<void>> = {
  async openai(way, models) {
    const lines = models.map((model) =>
      JSON.stringify({ custom_id: model, method: 'POST', url: '/v1/chat/completions', body: { model, messages: [] } }),
    );
    const body = formOf([
      { name: 'purpose', value: 'batch' },
      { name: 'file', filename: 'in.jsonl', value: lines.join('\n') },
    ]);
    const headers = { 'content-type': `multipart/form-data; boundary=${BOUNDARY}` };
    const file = await service.call(way, { method: 'POST', path: '/v1/files', body, headers });
    const batch = { input_file_id: file.json.id, endpoint: '/v1/chat/completions', completion_window: '24h' };
    const created = await service.call(way, { method: 'POST', path: '/v1/batches', body: JSON.stringify(batch) });
    expect(created.status).toBe(200);
  },
  async anthropic(way, models) {
    const requests = models.map((model) => ({ custom_id: model, params: { model, max_tokens: 1, messages: [] } }));
    const body = JSON.stringify({ requests });
    const created = await service.call(way, { method: 'POST', path: '/v1/messages/batches', body });
    expect(created.status).toBe(200);
  },
};

/** Ends pauses at once, again and again, until the item of the model is final; returns its event. */
async function endOf(model: string): Promise<Record<string, unknown>> {
  return vi.waitUntil(
    async () => {
      await service.sql(`update batch_items set not_before = clock_timestamp() - interval '1 millisecond'
        where not_before > clock_timestamp()`);
      await service.sql(`select pg_notify('relay_wake', 'work')`);
      const [event] = await service.sql(
        `select e.attempts, e.status, e.error_message from usage_events e join usage_routes r on r.id = e.route
          where r.requested_model = $1`,
        [model],
      );
      return event;
    },
    { timeout: 20_000, interval: 20 },
  );
}

describe.each(WAYS)('over %s', (way) => {
  describe.each(Object.keys(SURFACES))('on the surface %s', (surface) => {
    const create = SURFACES[surface]!;
    beforeAll(async () => {
      service = await startService({ catalog: KEYED_ANTHROPIC });
    });
    afterAll(() => service.close());

    // The first one: a replica that found no success looks again after 5 s only, and here no pause is as long as that.
    test('an item that always meets a 503 ends after 6 rounds while others of its model succeed', async () => {
      await create(way, ['status-503']);
      await vi.waitUntil(
        async () => {
          const rows = await service.sql('select from batch_items where failed_rounds > 0');
          return rows.length > 0;
        },
        { timeout: 20_000, interval: 20 },
      );
      await create(way, ['any']);
      await endOf('any');
      expect(await endOf('status-503')).toEqual({ attempts: 6, status: 503, error_message: 'upstream status 503' });
    });

    test('an item that always meets a 500 ends after 12 rounds without them', async () => {
      await create(way, ['status-500']);
      expect(await endOf('status-500')).toEqual({ attempts: 12, status: 500, error_message: 'upstream status 500' });
    });

    test('a success before its first failure does not count against it', async () => {
      await create(way, ['any']);
      await endOf('any');
      await create(way, ['status-500']);
      expect(await endOf('status-500')).toMatchObject({ attempts: 12 });
    });

    test.each([401, 402])('a %i on every key makes it wait, and a reset ends the wait', async (status) => {
      const keys = ['sk-host-one', 'sk-host-two'];
      for (const key of keys) service.upstream.failKey(key, status);
      await create(way, ['keyed']);
      const waiting = await vi.waitUntil(
        async () => (await service.sql('select attempts, failed_rounds from batch_items where waited_ms > 0'))[0],
        { timeout: 20_000, interval: 20 },
      );
      expect(waiting).toEqual({ attempts: 2, failed_rounds: 0 });
      for (const key of keys) service.upstream.failKey(key, null);
      for (const name of ['one', 'two']) await service.app.pool.reset(service.app.catalog().hostKeys.get(name)!);
      const [event] = await vi.waitUntil(
        async () => {
          const events = await service.sql('select status, attempts, error_kind from usage_events');
          return events.length > 0 ? events : null;
        },
        { timeout: 20_000, interval: 20 },
      );
      expect(event).toEqual({ status: 200, attempts: 3, error_kind: null });
    });

    test('429s do not end it', async () => {
      let calls = 0;
      service.upstream.answerWith(({ path, model }, response) => {
        sendStatus(response, path, model, ++calls > 15 ? 200 : 429);
      });
      await create(way, ['any']);
      expect(await endOf('any')).toMatchObject({ attempts: 16, status: 200 });
    });
  });
});
