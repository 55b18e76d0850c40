import { describe, expect, test } from 'vitest';
import { batchObject } from '../../../../lib/surfaces/openai/batch-object.ts';
import { parseBatchId, publicBatchId } from '../../../../lib/surfaces/openai/find-batch.ts';
import type { OpenaiBatchRow } from '../../../../lib/surfaces/openai/openai-batches.sql.ts';

const ID = '01939f2e-1d2c-7abc-8def-0123456789ab';
const at = (second: number) => new Date(1_790_000_000_000 + second * 1000 + 999);
const unix = (second: number) => 1_790_000_000 + second;

function object(more: Partial<OpenaiBatchRow> = {}) {
  return batchObject({
    id: ID,
    endpoint: '/v1/responses',
    model: null,
    errors: null,
    input_file_id: ID,
    metadata: null,
    output_file_id: null,
    error_file_id: null,
    created_at: at(0),
    expires_at: at(86_400),
    in_progress_at: null,
    items_done_at: null,
    cancelling_at: null,
    ended_at: null,
    final_status: null,
    total_items: null,
    counts: null,
    usage: null,
    ...more,
  });
}

const NONE = {
  in_progress_at: null,
  finalizing_at: null,
  completed_at: null,
  failed_at: null,
  expired_at: null,
  cancelling_at: null,
  cancelled_at: null,
};

describe('a batch object', () => {
  test('has every key from the start', () => {
    expect(object({ metadata: '{"b":"1","a":"\\u0000"}' })).toEqual({
      id: 'batch_01939f2e1d2c7abc8def0123456789ab',
      object: 'batch',
      endpoint: '/v1/responses',
      model: null,
      errors: null,
      input_file_id: 'file-01939f2e1d2c7abc8def0123456789ab',
      completion_window: '24h',
      status: 'validating',
      output_file_id: null,
      error_file_id: null,
      created_at: unix(0),
      expires_at: unix(86_400),
      ...NONE,
      request_counts: { total: 0, completed: 0, failed: 0 },
      usage: {
        input_tokens: 0,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: 0,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 0,
      },
      metadata: { b: '1', a: '\u0000' },
    });
  });

  const ran = { in_progress_at: at(1), total_items: 4 };
  const done = { ...ran, items_done_at: at(2) };
  test.each<[string, Partial<OpenaiBatchRow>, object]>([
    ['in_progress', ran, { in_progress_at: unix(1) }],
    ['finalizing', done, { in_progress_at: unix(1), finalizing_at: unix(2) }],
    [
      'completed',
      { ...done, final_status: 'completed', ended_at: at(3) },
      { in_progress_at: unix(1), finalizing_at: unix(2), completed_at: unix(3) },
    ],
    [
      'expired',
      { ...done, final_status: 'expired', ended_at: at(3) },
      { in_progress_at: unix(1), finalizing_at: unix(2), expired_at: unix(3) },
    ],
    ['cancelling', { ...ran, cancelling_at: at(2) }, { in_progress_at: unix(1), cancelling_at: unix(2) }],
    ['cancelling', { ...done, cancelling_at: at(2) }, { in_progress_at: unix(1), cancelling_at: unix(2) }],
    ['cancelling', { cancelling_at: at(2) }, { cancelling_at: unix(2) }],
    [
      'cancelled',
      { ...done, cancelling_at: at(2), final_status: 'cancelled', ended_at: at(3) },
      { in_progress_at: unix(1), cancelling_at: unix(2), cancelled_at: unix(3) },
    ],
    ['failed', { final_status: 'failed', ended_at: at(3) }, { failed_at: unix(3) }],
  ])('is %s with the times of its way', (status, row, times) => {
    expect(object(row)).toMatchObject({ status, ...NONE, ...times });
  });

  test('lists its faults with all four keys', () => {
    const fault = { line: 3, code: 'c', param: null, message: 'm' };
    expect(object({ final_status: 'failed', ended_at: at(1), errors: [fault] }).errors).toEqual({
      object: 'list',
      data: [fault],
    });
  });

  test('counts as failed what is in the error file, so that the counts make the total in the end', () => {
    const counts = { available: 0, completed: 1, discarded: 2, cancelled: 3 };
    expect(object({ ...done, total_items: 6, counts }).request_counts).toEqual({ total: 6, completed: 1, failed: 5 });
  });

  test('adds up what the provider calls input, exactly', () => {
    const usage = {
      input: '9007199254740993',
      cache_read: '10',
      cache_creation: '100',
      cache_creation_5m: '1000',
      cache_creation_1h: null,
      output: '7',
      reasoning: '3',
    };
    const text = JSON.stringify(object({ ...ran, usage }).usage);
    expect(text).toBe(
      '{"input_tokens":9007199254742103,"input_tokens_details":{"cached_tokens":10},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":9007199254742110}',
    );
  });
});

describe('a public batch id', () => {
  test('leads back to the id', () => {
    expect(parseBatchId(publicBatchId(ID))).toBe(ID);
  });

  test.each([
    ID,
    'batch_',
    `batch_${ID}`,
    'batch_01939F2E1D2C7ABC8DEF0123456789AB',
    'msgbatch_01a',
    `x${publicBatchId(ID)}`,
  ])('is not %s', (text) => {
    expect(parseBatchId(text)).toBeNull();
  });
});
