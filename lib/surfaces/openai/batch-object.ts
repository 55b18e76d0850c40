import { type JsonInteger, jsonInteger } from '../../usage/sums.ts';
import { fileIdOf } from '../files/file-object.ts';
import { publicBatchId } from './find-batch.ts';
import type { FinalStatus, OpenaiBatchRow, UsageSums } from './openai-batches.sql.ts';

export type OpenaiStatus = 'validating' | 'in_progress' | 'finalizing' | 'cancelling' | FinalStatus;

/**
 * The status of a batch. `finalizing` begins with its last item's end and lasts until its files are there; a cancel
 * is `cancelling` for all of that time.
 */
function statusOf(row: OpenaiBatchRow): OpenaiStatus {
  if (row.final_status !== null) return row.final_status;
  if (row.cancelling_at !== null) return 'cancelling';
  if (row.in_progress_at === null) return 'validating';
  return row.items_done_at === null ? 'in_progress' : 'finalizing';
}

/**
 * The Batch object ("Batch object" in docs/spec/openai-surface.md): all keys, absent values null, times in Unix
 * seconds. `request_counts` come from the item rows: `failed` are the requests that stand in the error file, cancelled
 * and expired ones too, so that with the end `completed` and `failed` make `total`. `total` is 0 until the validation
 * has passed.
 */
export function batchObject(row: OpenaiBatchRow) {
  const status = statusOf(row);
  const ended = (as: FinalStatus) => (row.final_status === as ? unixSeconds(row.ended_at) : null);
  const { completed = 0, discarded = 0, cancelled = 0 } = row.counts ?? {};
  return {
    id: publicBatchId(row.id),
    object: 'batch',
    endpoint: row.endpoint,
    model: row.model,
    errors: row.errors && {
      object: 'list',
      data: row.errors.map(({ code, message, param, line }) => ({ code, message, param, line })),
    },
    input_file_id: fileIdOf(row.input_file_id),
    completion_window: '24h',
    status,
    output_file_id: row.output_file_id && fileIdOf(row.output_file_id),
    error_file_id: row.error_file_id && fileIdOf(row.error_file_id),
    created_at: unixSeconds(row.created_at),
    in_progress_at: unixSeconds(row.in_progress_at),
    expires_at: unixSeconds(row.expires_at),
    finalizing_at: row.cancelling_at === null ? unixSeconds(row.items_done_at) : null,
    completed_at: ended('completed'),
    failed_at: ended('failed'),
    expired_at: ended('expired'),
    cancelling_at: unixSeconds(row.cancelling_at),
    cancelled_at: ended('cancelled'),
    request_counts: { total: row.total_items ?? 0, completed, failed: discarded + cancelled },
    usage: usageOf(row.usage ?? {}),
    metadata: row.metadata === null ? null : JSON.parse(row.metadata),
  };
}

/** The provider's totals: what was read from a cache and written to one counts as input, as it does in its answers. */
function usageOf(sums: UsageSums) {
  const cached = BigInt(sums.cache_read ?? 0);
  const written = [sums.cache_creation, sums.cache_creation_5m, sums.cache_creation_1h];
  const input = written.reduce((sum, n) => sum + BigInt(n ?? 0), BigInt(sums.input ?? 0) + cached);
  const output = BigInt(sums.output ?? 0);
  return {
    input_tokens: integer(input),
    input_tokens_details: { cached_tokens: integer(cached) },
    output_tokens: integer(output),
    output_tokens_details: { reasoning_tokens: integer(BigInt(sums.reasoning ?? 0)) },
    total_tokens: integer(input + output),
  };
}

function integer(n: bigint): JsonInteger {
  return jsonInteger(String(n));
}

function unixSeconds(time: Date): number;
function unixSeconds(time: Date | null): number | null;
function unixSeconds(time: Date | null): number | null {
  return time && Math.floor(time.getTime() / 1000);
}
