import { createHash } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { startServer } from '../../../bin/serve.ts';
import { loadConfig } from '../../../lib/app/config.ts';
import { createLog } from '../../../lib/base/log.ts';
import { expectedVersion, isSchemaCurrent } from '../../../lib/db/migrate.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { loadPreviousRelease, type PreviousRelease } from '../../support/previous-release/load.ts';
import { startServer as startProcess } from '../../support/server.ts';
import { startUpstream, type TestUpstream } from '../../support/upstream.ts';

// The upgrade: this release starts on what the previous one left when it was killed in the middle of its work
// ("Migrations" in docs/spec/engine-guarantees.md).

const MIGRATIONS = join(import.meta.dirname, '../../../migrations');

let home: string;
let database: TestDatabase;
let upstream: TestUpstream;

beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), 'relay-upgrade-'));
  database = await createTestDatabase();
  upstream = await startUpstream();
  upstream.answerWith(({ path, body }, response) => {
    const text = `after: ${contentOf(body)}`;
    const answer =
      path === '/v1/messages'
        ? { content: [{ type: 'text', text }], usage: { input_tokens: 10, output_tokens: 5 } }
        : { choices: [{ message: { content: text } }], usage: { prompt_tokens: 10, completion_tokens: 5 } };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify(answer));
  });
});
afterEach(async () => {
  await upstream.close();
  await database.close();
  await rm(home, { recursive: true, force: true });
});

function contentOf(body: Buffer): string {
  return JSON.parse(body.toString()).messages[0].content;
}

/** The text of an answer, in the form of either provider. */
function textOf(answer: { choices?: { message: { content: string } }[]; content?: { text: string }[] }): string {
  return answer.choices?.[0]?.message.content ?? answer.content![0]!.text;
}

async function sql(text: string, values: unknown[] = []) {
  return (
    await database.db.query<Record<string, unknown>>({
      name: createHash('md5').update(text).digest('hex'),
      text,
      values,
    })
  ).rows;
}

interface Running {
  url: string;
  controlUrl: string;
  stop(): Promise<unknown>;
}

const environment = { RELAY_SHUTDOWN_DEADLINE_S: '0', RELAY_CATALOG: '' };

async function inProcess(env: Record<string, string>): Promise<Running> {
  const all = { ...database.postgresEnv, ...environment, RELAY_PORT: '0', RELAY_CONTROL_PORT: '0', ...env };
  const server = await startServer(loadConfig(all), all, createLog('silent'));
  await server.app.ready;
  const at = (port: number | null) => `http://127.0.0.1:${port}`;
  return { url: at(server.port), controlUrl: at(server.controlPort), stop: server.stop };
}

async function asProcess(env: Record<string, string>): Promise<Running> {
  return startProcess({ home, dsn: database.dsn, catalog: '', env: { ...environment, ...env } });
}

const range = (name: string, ...numbers: number[]) => numbers.map((n) => `${name} ${n}`);
const TWENTY = Array.from({ length: 20 }, (_, i) => i);

/** The items that the previous release had not recorded when it was killed. */
const OPEN = [
  ...range('later half', 1, 3, 4),
  ...range('later running', 1, 2),
  ...range('later messages', 2),
  ...range('shaky', 0, 1),
  ...range('queued', ...TWENTY),
  ...range('validating', 0, 1),
];

interface Variant extends Pick<PreviousRelease, 'renumber'> {
  of: string;
  start(env: Record<string, string>): Promise<Running>;
}

const VARIANTS: Variant[] = [
  { of: 'the previous release', start: inProcess },
  {
    of: 'a clone from before the migrations were numbered without a gap',
    start: asProcess,
    renumber: (_name, version) => (version >= 9 ? version + 1 : version),
  },
];

test.each(VARIANTS)(
  'every batch in work of a database of $of is finished, nothing lost, nothing twice',
  async (variant) => {
    const payloadDir = join(home, 'payloads');
    const { renumber, start } = variant;
    const at = { dsn: database.dsn, payloadDir, upstreamUrl: upstream.url };
    const left = await loadPreviousRelease(renumber === undefined ? at : { ...at, renumber });
    if (renumber !== undefined) expect(await isSchemaCurrent(database.db, await expectedVersion())).toBe(false);
    const recorded = await sql(`select batch_id, idx, segment_id, output_offset, finalized_at from batch_items
    where finalized_at is not null order by 1, 2`);
    const eventsBefore = await sql('select * from usage_events order by batch_id, batch_idx');

    const { secrets, batches, files, queued, upload } = left;
    const ann = secrets.env.PREVIOUS_KEY_ANN;
    const server = await start({
      RELAY_BATCH_PAYLOAD_DIR: payloadDir,
      RELAY_DATA_DIR: join(home, 'data'),
      RELAY_MASTER_KEY: secrets.masterKey,
      RELAY_ADMIN_TOKEN: secrets.adminToken,
      RELAY_INSTANCE_ID: secrets.instance,
      ...secrets.env,
    });
    const get = async (path: string, key = ann) => {
      const response = await fetch(server.url + path, { headers: { authorization: `Bearer ${key}` } });
      expect([path, response.status]).toEqual([path, 200]);
      return response.text();
    };
    const post = async (path: string, body: string, headers: Record<string, string> = {}) => {
      const response = await fetch(server.url + path, {
        method: 'POST',
        body,
        headers: { authorization: `Bearer ${ann}`, ...headers },
      });
      return { status: response.status, json: (await response.json()) as Record<string, unknown> };
    };
    const allCompacted = () =>
      vi.waitUntil(
        async () =>
          (
            await sql(`select id from batches where results_id is null
            union all select id from openai_batches where ended_at is null`)
          ).length === 0,
        { interval: 50, timeout: 60_000 },
      );
    try {
      await allCompacted();

      // Each open item was called once, with the host keys that the old master key and the environment open.
      expect(upstream.received.map(({ body }) => contentOf(body)).sort()).toEqual([...OPEN].sort());
      for (const { model, key } of upstream.received) {
        expect(key).toBe(model === 'shaky' ? secrets.env.PREVIOUS_HOST_KEY : secrets.storedHostKey);
      }

      // The recorded outcomes stay as they were; each item has one usage event.
      const places = recorded.map(({ batch_id, idx }) => `${batch_id} ${idx}`);
      const now = await sql(
        `select batch_id, idx, segment_id, output_offset, finalized_at from batch_items order by 1, 2`,
      );
      expect(now.filter(({ batch_id, idx }) => places.includes(`${batch_id} ${idx}`))).toEqual(recorded);
      expect(now).toHaveLength(recorded.length + OPEN.length);
      const events = await sql('select * from usage_events order by batch_id, batch_idx');
      expect(events.map(({ batch_id, batch_idx }) => [batch_id, batch_idx])).toEqual(
        now.map(({ batch_id, idx }) => [batch_id, idx]),
      );
      expect(events.filter((event) => places.includes(`${event.batch_id} ${event.batch_idx}`))).toEqual(eventsBefore);
      for (const event of events.filter(({ status }) => status === 200)) {
        expect(event).toMatchObject({ tokens_input: 10, tokens_output: 5 });
      }

      // Native batches: the results of both releases in one document.
      const results = async (id: string, key = ann) =>
        JSON.parse(await get(`/v1/batches/${id}/results`, key)).results as { state: string; response: object }[];
      const texts = async (id: string, key = ann) => (await results(id, key)).map(({ response }) => textOf(response));
      const done = range('done', 0, 1, 2).map((text) => `before: ${text}`);
      expect(await texts(batches.done)).toEqual(done);
      expect(await results(batches.discarded)).toMatchObject([
        { state: 'discarded', error: 'batch item: route "unknown": model not found' },
      ]);
      expect(await results(batches.cancelled)).toMatchObject([{ state: 'cancelled' }]);
      expect(await texts(batches.queued)).toEqual(range('after: queued', ...TWENTY));
      expect(await texts(batches.waiting)).toEqual(range('after: shaky', 0, 1));
      expect(JSON.parse(await get(`/v1/batches/${batches.queued}?items=false`))).toMatchObject({
        Status: 'queued',
        TotalItems: 20,
        counts: { completed: 20 },
      });

      // A token of the signing key that the old release made reads what one of its tokens submitted.
      const issued = await fetch(`${server.controlUrl}/api/tokens`, {
        method: 'POST',
        headers: { authorization: `Bearer ${secrets.adminToken}` },
        body: JSON.stringify({ user: 'uma', project: 'x', ttl: 600 }),
      });
      const { token } = (await issued.json()) as { token: string };
      expect(JSON.parse(Buffer.from(token.split('.')[0]!, 'base64url').toString()).kid).toBe(left.kid);
      expect(await texts(batches.half, token)).toEqual([
        'before: half 0',
        'after: later half 1',
        'before: half 2',
        'after: later half 3',
        'after: later half 4',
        'before: half 5',
      ]);

      // OpenAI batches and files.
      const output = async (id: string) => {
        const batch = JSON.parse(await get(`/v1/batches/${id}`));
        const lines = (await get(`/v1/files/${batch.output_file_id}/content`)).trimEnd().split('\n');
        const parsed = lines.map((line) => JSON.parse(line));
        return {
          batch: [batch.status, batch.input_file_id, batch.request_counts],
          ids: parsed.map(({ custom_id }) => custom_id),
          texts: parsed.map(({ response }) => textOf(response.body)),
        };
      };
      expect(await output(batches.running)).toEqual({
        batch: ['completed', files.running, { total: 4, completed: 4, failed: 0 }],
        ids: ['running-0', 'running-1', 'running-2', 'running-3'],
        texts: ['before: running 0', 'after: later running 1', 'after: later running 2', 'before: running 3'],
      });
      expect(await output(batches.validating)).toEqual({
        batch: ['completed', files.validating, { total: 2, completed: 2, failed: 0 }],
        ids: ['validating-0', 'validating-1'],
        texts: range('after: validating', 0, 1),
      });
      expect((await output(batches.written)).texts).toEqual(['before: written 0']);
      expect(JSON.parse((await get(`/v1/files/${files.written}/content`)).trim())).toMatchObject({
        custom_id: 'written-0',
      });
      expect(JSON.parse(await get('/v1/files')).data.map(({ id }: { id: string }) => id)).toEqual(
        expect.arrayContaining(Object.values(files)),
      );

      // The Anthropic batch.
      expect(JSON.parse(await get(`/v1/messages/batches/${batches.messages}`))).toMatchObject({
        processing_status: 'ended',
        request_counts: { succeeded: 3, processing: 0, errored: 0 },
      });
      const messages = (await get(`/v1/messages/batches/${batches.messages}/results`)).trimEnd().split('\n');
      expect(
        messages.map((line) => JSON.parse(line)).map(({ custom_id, result }) => [custom_id, textOf(result.message)]),
      ).toEqual([
        ['messages-0', 'before: messages 0'],
        ['messages-1', 'before: messages 1'],
        ['messages-2', 'after: later messages 2'],
      ]);

      // Facts outlive batches: the limit's window continues, a repeated submit finds its batch, an upload its bytes.
      const windows = await sql(`select used from limit_buckets where anchor_us > 0 and used < 100`);
      expect(windows).toEqual([{ used: left.received + OPEN.length }]);
      expect(await post('/v1/batches', queued.body, { 'Idempotency-Key': queued.idempotencyKey })).toMatchObject({
        status: 202,
        json: { id: batches.queued },
      });
      const submitted = await post('/v1/batches', JSON.stringify({ upload_id: upload.id }));
      expect(submitted).toMatchObject({ status: 202, json: { total_items: 2 } });
      await allCompacted();
      expect(await texts(String(submitted.json.id))).toEqual(range('after: uploaded', 0, 1));

      // Migrations are recorded under the numbers of this release.
      const names = (await readdir(MIGRATIONS)).sort();
      const migrations = await sql('select version, name, checksum from schema_migrations order by version');
      expect(migrations).toEqual(
        names.map((name, i) => ({ version: i + 1, name, checksum: expect.stringMatching(/^[0-9a-f]{64}$/) })),
      );
    } finally {
      await server.stop();
    }
  },
);
