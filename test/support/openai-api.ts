import { crc32 as crcOf } from 'node:zlib';
import { SHARED_BATCH_ENDPOINTS } from '../../handlers/by-surface.ts';
import { below, bindEndpoints } from '../../handlers/endpoint.ts';
import { OPENAI_BATCH_ENDPOINTS, type OpenaiApp } from '../../handlers/openai.ts';
import { hashKey } from '../../lib/auth/keys.ts';
import { uuidv7 } from '../../lib/base/clock.ts';
import { compactBatch } from '../../lib/batch/results/compact.ts';
import type { PayloadKind, PayloadStore } from '../../lib/payloads/payload-store.ts';
import { fileIdOf } from '../../lib/surfaces/files/file-object.ts';
import { type FilePurpose, insertFile } from '../../lib/surfaces/files/stored-files.sql.ts';
import { parseBatchId } from '../../lib/surfaces/openai/find-batch.ts';
import type { ValidateDeps } from '../../lib/surfaces/openai/validation/validate.ts';
import { createValidator, type Validator } from '../../lib/surfaces/openai/validation/validator.ts';
import { writeOpenaiResults } from '../../lib/surfaces/openai/write-results.ts';
import { plaintextOf } from './auth-catalog.ts';
import { type Answer, type Call, createNativeApi, type NativeApi, type NativeApp, type Way } from './native-api.ts';

/** How an item ended, as `finish` records it. */
export interface Ending {
  state: 'completed' | 'discarded' | 'cancelled';
  error?: string;
  errorKind?: string;
  status?: number;
  body?: string;
  tokens?: Record<string, number>;
}

/** OpenAI's batch calls on a real database and store. Nothing runs by itself: tests start validation and results. */
export interface OpenaiApi {
  native: NativeApi;
  payloads: PayloadStore;
  deps: ValidateDeps;
  validator: Validator;
  /** How often a create woke the validator. */
  woken(): number;
  /** Batches that a cancel asked to compact. */
  compacted: string[];
  call(way: Way, call: Call): Promise<Answer>;
  sql: NativeApi['sql'];
  /** Makes a file of an owner and returns its public id. */
  file(text: string | Buffer, options?: { as?: string; purpose?: FilePurpose }): Promise<string>;
  /** Creates a batch and returns its object. */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers
  create(way: Way, fileId: string, more?: object, headers?: Record<string, string>): Promise<any>;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers
  get(id: string, as?: string): Promise<any>;
  /** Records how the items of a batch ended, as workers would, up to the last one. */
  finish(id: string, endings: readonly Ending[]): Promise<void>;
  /** Writes the result files; false when there was nothing to do. */
  results(id: string): Promise<boolean>;
  /** The bytes of a result file. */
  content(fileId: string): Promise<string>;
  objects(kind: PayloadKind): Promise<string[]>;
  close(): Promise<void>;
}

/** The owner that a key of this name stands for. */
export const ownerOf = (name: string) => hashKey(plaintextOf(name));

/** The UUID of a batch's public id. */
export const uuidOf = (id: string) => parseBatchId(id)!;

/** Opens it; `change` may replace parts of what validations work with. */
export async function createOpenaiApi(
  change: (deps: ValidateDeps) => Partial<ValidateDeps> = () => ({}),
): Promise<OpenaiApi> {
  const native = await createNativeApi();
  const { payloads, sql } = native;
  const { db } = native.database;
  const { clock, log, queue, maxPendingItemsPerOwner } = native.app;
  const checkStore = async () => null;
  const base: ValidateDeps = {
    db,
    payloads,
    bodies: native.app.bodies,
    clock,
    log,
    queue,
    maxPendingItemsPerOwner,
    checkStore,
  };
  const deps = { ...base, ...change(base) };
  const compacted: string[] = [];
  let woken = 0;
  const app: NativeApp & OpenaiApp = {
    ...native.app,
    db,
    wakeValidator: () => void woken++,
    compact: async (ids) => void compacted.push(...ids),
  };
  // The routes that the native API and OpenAI's share, beside OpenAI's own.
  const routes = bindEndpoints([...OPENAI_BATCH_ENDPOINTS, ...below('/shared', SHARED_BATCH_ENDPOINTS)], app);
  const { call } = await native.serve(routes, { maxBodyBytes: 4 * 1024 * 1024 });
  const validator = createValidator(deps);

  return {
    native,
    payloads,
    deps,
    validator,
    woken: () => woken,
    compacted,
    call,
    sql,
    async file(text, { as = 'ann', purpose = 'batch' } = {}) {
      const bytes = Buffer.from(text as string);
      const object = { kind: purpose === 'batch' ? ('input' as const) : ('output' as const), id: uuidv7() };
      await payloads.write(object, [bytes]);
      const row = await insertFile(db, {
        owner: ownerOf(as),
        purpose,
        filename: 'f.jsonl',
        bytes: bytes.length,
        object,
        expiresAfterSeconds: 3600,
      });
      return fileIdOf(row.id);
    },
    async create(way, fileId, more = {}, headers = {}) {
      const body = JSON.stringify({
        input_file_id: fileId,
        endpoint: '/v1/chat/completions',
        completion_window: '24h',
        ...more,
      });
      const answer = await call(way, { method: 'POST', path: '/v1/batches', body, headers });
      if (answer.status !== 200) throw new Error(`create was answered ${answer.status}: ${answer.text}`);
      return answer.json;
    },
    async get(id, as = 'ann') {
      const answer = await call('node', { path: `/v1/batches/${id}`, as });
      if (answer.status !== 200) throw new Error(`get was answered ${answer.status}: ${answer.text}`);
      return answer.json;
    },
    async finish(id, endings) {
      const uuid = uuidOf(id);
      const segment = uuidv7();
      const bodies = endings.map(({ body }) => (body === undefined ? null : Buffer.from(body)));
      await payloads.write(
        { kind: 'segment', id: segment },
        bodies.filter((body) => body !== null),
      );
      await sql('insert into segment_refs (segment_id, batch_id) values ($1::uuid, $2::uuid)', [segment, uuid]);
      let offset = 0;
      for (const [idx, { state, error, errorKind, status = 0, tokens = {} }] of endings.entries()) {
        const body = bodies[idx] ?? null;
        const span = body === null ? [null, null, null, null] : [segment, offset, body.length, crcOf(body)];
        await sql(
          `update batch_items set state = $3::item_state, error = $4::text, finalized_at = clock_timestamp(), not_before = null,
            segment_id = $5::uuid, output_offset = $6::int, output_length = $7::int, output_crc = $8::bigint
          where batch_id = $1::uuid and idx = $2::int and finalized_at is null`,
          [uuid, idx, state, error === undefined ? null : `batch item: ${error}`, ...span],
        );
        offset += body?.length ?? 0;
        await sql(
          `insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, error_kind, tokens_input,
            tokens_cache_read, tokens_output, tokens_reasoning)
          values ($1::uuid, $2::int, clock_timestamp(), $3::smallint, 1, 1, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::bigint)
          on conflict do nothing`,
          [uuid, idx, status, errorKind ?? null, tokens.input, tokens.cache_read, tokens.output, tokens.reasoning],
        );
      }
      await sql('delete from batch_cursors where batch_id = $1::uuid', [uuid]);
      await sql(
        `update batches b set open_items = n.open,
          completed_at = case when n.open = 0 then coalesce(b.completed_at, clock_timestamp()) end
        from (select count(*) filter (where finalized_at is null) as open from batch_items where batch_id = $1::uuid) n
        where id = $1::uuid`,
        [uuid],
      );
    },
    results: (id) => compactBatch({ ...deps, payloads }, uuidOf(id), { openai: writeOpenaiResults }),
    async content(fileId) {
      const rows = await sql(
        `select object_id, bytes from files where 'file-' || replace(id::text, '-', '') = $1::text and object_kind = 'output'`,
        [fileId],
      );
      const ref = { kind: 'output' as const, id: String(rows[0]!.object_id) };
      const bytes = await payloads.size(ref);
      if (bytes !== rows[0]!.bytes) throw new Error('the file has another size than its object');
      return (await payloads.read(ref, 0, bytes)).toString();
    },
    async objects(kind) {
      const ids: string[] = [];
      for await (const { id } of payloads.list(kind, Date.now() + 3_600_000)) ids.push(id);
      return ids;
    },
    async close() {
      await validator.stop();
      await native.close();
    },
  };
}
