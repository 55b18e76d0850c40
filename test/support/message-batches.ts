import { MESSAGE_BATCH_ENDPOINTS, type MessageBatchesApp } from '../../handlers/anthropic.ts';
import { below, bindEndpoints } from '../../handlers/endpoint.ts';
import { compactBatch } from '../../lib/batch/results/compact.ts';
import type { SeenRequest } from '../../lib/http/node.ts';
import type { ErrorKind } from '../../lib/model/usage-event.ts';
import type { PayloadKind, PayloadStore } from '../../lib/payloads/payload-store.ts';
import { parseMessageBatchId } from '../../lib/surfaces/anthropic/message-batch.ts';
import { writeMessageResults } from '../../lib/surfaces/anthropic/write-results.ts';
import { type Answer, type Call, createNativeApi, type NativeApi, type Way } from './native-api.ts';
import { finish, type Outcome } from './outcomes.ts';

/** How one item ends, with what its usage event says of the answer. */
export interface MessageOutcome extends Outcome {
  status?: number;
  errorKind?: ErrorKind;
}

/** Message batches on a real database and store, without workers: tests make items final. */
export interface MessageBatchesApi {
  native: NativeApi;
  payloads: PayloadStore;
  /** Where they listen. */
  url: string;
  seen: SeenRequest[];
  call(way: Way, call: Call): Promise<Answer>;
  /** Ends items as their worker would. */
  finish(id: string, outcomes: readonly MessageOutcome[]): Promise<void>;
  /** Writes the results, as is done once the last item is final. */
  compact(id: string): Promise<boolean>;
  /** Ids of the objects of a kind. */
  objects(kind: PayloadKind): Promise<string[]>;
  /** The UUID behind a public id. */
  uuidOf(id: string): string;
  close(): Promise<void>;
}

/** Opens them; `payloads` in place of the store on files. */
export async function createMessageBatchesApi(
  options: { payloads?: PayloadStore; app?: Partial<MessageBatchesApp> } = {},
): Promise<MessageBatchesApi> {
  const native = await createNativeApi(() => (options.payloads === undefined ? {} : { payloads: options.payloads }));
  const payloads = options.payloads ?? native.payloads;
  const deps = { db: native.database.db, payloads, clock: native.app.clock, log: native.app.log };
  const compactOne = (uuid: string) => compactBatch(deps, uuid, { anthropic: writeMessageResults });
  const compact = async (uuids: readonly string[]) => {
    for (const uuid of uuids) await compactOne(uuid);
  };
  const app: MessageBatchesApp = { ...native.app, ...deps, compact, ...options.app };
  const routes = bindEndpoints([...MESSAGE_BATCH_ENDPOINTS, ...below('/anthropic', MESSAGE_BATCH_ENDPOINTS)], app);
  const { url, seen, call } = await native.serve(routes, { maxBodyBytes: 1024, payloads });
  const uuidOf = (id: string) => parseMessageBatchId(id)!;
  return {
    native,
    payloads,
    url,
    seen,
    uuidOf,
    call,
    async finish(id, outcomes) {
      await finish({ database: native.database, payloads }, uuidOf(id), [...outcomes]);
      for (const { idx, state, error, status = 0, errorKind = null } of outcomes) {
        await native.sql(
          `insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, error_kind, error_message,
            instance)
          values ($1::uuid, $2::int, clock_timestamp(), $3::int, 1, 0, $4::text, $5::text, 'test')`,
          [uuidOf(id), idx, state === 'completed' ? 200 : status, errorKind, error ?? null],
        );
      }
    },
    compact: (id) => compactOne(uuidOf(id)),
    async objects(kind) {
      const ids: string[] = [];
      for await (const { id } of payloads.list(kind, Date.now() + 3_600_000)) ids.push(id);
      return ids;
    },
    close: native.close,
  };
}
