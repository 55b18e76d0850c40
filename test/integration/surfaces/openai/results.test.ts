import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { deleteExpiredOpenaiBatches } from '../../../../lib/surfaces/openai/openai-batches.sql.ts';
import { WAYS } from '../../../support/native-api.ts';
import { createOpenaiApi, type Ending, type OpenaiApi, ownerOf, uuidOf } from '../../../support/openai-api.ts';

let api: OpenaiApi;
beforeAll(async () => {
  api = await createOpenaiApi();
});
afterAll(() => api.close());

const line = (id: string) => `{"custom_id":${id},"method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}`;
const DONE: Ending = { state: 'completed', status: 200, body: '{"n":1.0}' };
const REFUSED: Ending = {
  state: 'discarded',
  status: 400,
  error: 'upstream status 400',
  errorKind: 'upstream_error',
  body: '{"error":{"message":"no"}}',
};
const EXPIRED: Ending = { state: 'discarded', error: 'expired', errorKind: 'timeout' };
const CANCELLED: Ending = { state: 'cancelled', errorKind: 'cancelled' };

/** A batch that runs, with so many items. */
async function running(way: (typeof WAYS)[number], count: number, more: object = {}): Promise<string> {
  const text = Array.from({ length: count }, (_, i) => line(`"\\u0069${i}"`)).join('\n');
  const { id } = await api.create(way, await api.file(text), more);
  await api.validator.run();
  return id;
}

const linesOf = async (fileId: string) => {
  const text = await api.content(fileId);
  expect(text.endsWith('\n')).toBe(true);
  return text.slice(0, -1).split('\n');
};
const fileRow = async (fileId: string) =>
  (
    await api.sql(
      `select *, extract(epoch from expires_at - created_at)::int as lives_s from files
      where 'file-' || replace(id::text, '-', '') = $1::text`,
      [fileId],
    )
  )[0];
const cancel = (way: (typeof WAYS)[number], id: string, body?: string) =>
  api.call(way, {
    method: 'POST',
    path: `/v1/batches/${id}/cancel`,
    headers: { 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body }),
  });

describe.each(WAYS)('a batch created by %s', (way) => {
  test('ends with an output and an error file, in the order of its lines', async () => {
    const id = await running(way, 5, { output_expires_after: { anchor: 'created_at', seconds: 7200 } });
    await api.finish(id, [
      { ...DONE, tokens: { input: 10, cache_read: 5, output: 7, reasoning: 2 } },
      REFUSED,
      { ...DONE, body: '{\n"n":\r\n2}', tokens: { input: 1, output: 1 } },
      { state: 'discarded', error: 'timed out after 300s', errorKind: 'timeout', status: 429 },
      DONE,
    ]);
    const finalizing = await api.get(id);
    expect(finalizing).toMatchObject({
      status: 'finalizing',
      finalizing_at: expect.any(Number),
      completed_at: null,
      output_file_id: null,
      request_counts: { total: 5, completed: 3, failed: 2 },
    });
    expect(await api.results(id)).toBe(true);
    const batch = await api.get(id);
    expect(batch).toMatchObject({
      status: 'completed',
      completed_at: expect.any(Number),
      errors: null,
      request_counts: { total: 5, completed: 3, failed: 2 },
      usage: {
        input_tokens: 16,
        input_tokens_details: { cached_tokens: 5 },
        output_tokens: 8,
        output_tokens_details: { reasoning_tokens: 2 },
        total_tokens: 24,
      },
    });
    expect(batch.usage).toEqual(finalizing.usage);
    const output = await linesOf(batch.output_file_id);
    expect(output.map((text) => JSON.parse(text).custom_id)).toEqual(['i0', 'i2', 'i4']);
    expect(output[0]).toContain('"custom_id":"\\u00690","response":{"status_code":200,');
    expect(output[0]).toContain('"body":{"n":1.0}},"error":null}');
    expect(output[1]).toContain('"body":{ "n":  2}},"error":null}');
    const errors = (await linesOf(batch.error_file_id)).map((text) => JSON.parse(text));
    expect(errors).toMatchObject([
      { custom_id: 'i1', response: { status_code: 400, body: { error: { message: 'no' } } }, error: null },
      { custom_id: 'i3', response: null, error: { code: 'request_timeout', message: 'timed out after 300s' } },
    ]);
    const ids = [...output.map((text) => JSON.parse(text).id), ...errors.map((one) => one.id)];
    expect(new Set(ids).size).toBe(5);
    for (const fileId of [batch.output_file_id, batch.error_file_id]) {
      expect(await fileRow(fileId)).toMatchObject({
        owner: ownerOf('ann'),
        purpose: 'batch_output',
        filename: expect.stringMatching(/\.jsonl$/),
        lives_s: 7200,
      });
    }
    expect(await api.sql('select 1 from segment_refs where batch_id = $1::uuid', [uuidOf(id)])).toEqual([]);
    const objects = await api.objects('output');
    expect(await api.results(id)).toBe(false);
    expect(await api.objects('output')).toEqual(objects);
  });

  test('has no output file when nothing was completed, and is completed all the same', async () => {
    const id = await running(way, 2);
    await api.finish(id, [REFUSED, REFUSED]);
    await api.results(id);
    const batch = await api.get(id);
    expect(batch).toMatchObject({ status: 'completed', output_file_id: null });
    expect(await linesOf(batch.error_file_id)).toHaveLength(2);
    expect((await fileRow(batch.error_file_id))!.lives_s).toBe(30 * 86_400);
  });

  test('has no error file when nothing failed', async () => {
    const id = await running(way, 2);
    await api.finish(id, [DONE, DONE]);
    await api.results(id);
    const batch = await api.get(id);
    expect(batch).toMatchObject({ status: 'completed', error_file_id: null });
    expect(await linesOf(batch.output_file_id)).toHaveLength(2);
  });

  test('is expired when a request was not done in time', async () => {
    const id = await running(way, 3);
    await api.finish(id, [DONE, EXPIRED, EXPIRED]);
    await api.results(id);
    const batch = await api.get(id);
    expect(batch).toMatchObject({
      status: 'expired',
      expired_at: expect.any(Number),
      completed_at: null,
      request_counts: { total: 3, completed: 1, failed: 2 },
    });
    expect(await linesOf(batch.output_file_id)).toHaveLength(1);
    const codes = (await linesOf(batch.error_file_id)).map((text) => JSON.parse(text).error.code);
    expect(codes).toEqual(['batch_expired', 'batch_expired']);
  });

  test('that is cancelled keeps what was finished, and refuses a cancel after its end', async () => {
    const id = await running(way, 3);
    await api.sql(
      `update batch_items set state = 'running', worker_id = $2::uuid where batch_id = $1::uuid and idx = 0`,
      [uuidOf(id), uuidOf(id)],
    );
    api.native.wakes.length = 0;
    const first = await cancel(way, id, '');
    expect(first.status).toBe(200);
    expect(first.json).toMatchObject({
      id,
      status: 'cancelling',
      cancelling_at: expect.any(Number),
      request_counts: { total: 3, completed: 0, failed: 2 },
    });
    expect(api.native.wakes).toEqual([{ kind: 'cancel', batchId: uuidOf(id) }]);
    const again = await cancel(way, id, 'no json');
    expect(again.status).toBe(200);
    expect(again.json.cancelling_at).toBe(first.json.cancelling_at);
    expect(await api.results(id)).toBe(false);
    await api.finish(id, [DONE, CANCELLED, CANCELLED]);
    expect((await api.get(id)).status).toBe('cancelling');
    expect(await api.results(id)).toBe(true);
    const batch = await api.get(id);
    expect(batch).toMatchObject({
      status: 'cancelled',
      cancelled_at: expect.any(Number),
      completed_at: null,
      finalizing_at: null,
      request_counts: { total: 3, completed: 1, failed: 2 },
    });
    expect(await linesOf(batch.output_file_id)).toHaveLength(1);
    const errors = (await linesOf(batch.error_file_id)).map((text) => JSON.parse(text));
    expect(errors).toMatchObject([
      { custom_id: 'i1', response: null, error: { code: 'batch_cancelled' } },
      { custom_id: 'i2', response: null, error: { code: 'batch_cancelled' } },
    ]);
    const late = await cancel(way, id);
    expect(late.status).toBe(409);
    expect(late.headers.get('x-should-retry')).toBe('false');
    expect(late.json.error).toMatchObject({
      type: 'invalid_request_error',
      message: "Cannot cancel a batch with status 'cancelled'.",
      param: null,
    });
    expect(await api.get(id)).toEqual(batch);
  });

  test('that nothing runs of is asked to write its files with the cancel', async () => {
    const id = await running(way, 2);
    expect((await cancel(way, id)).json.status).toBe('cancelling');
    expect(api.compacted).toContain(uuidOf(id));
    expect(await api.results(id)).toBe(true);
    expect(await api.get(id)).toMatchObject({
      status: 'cancelled',
      output_file_id: null,
      request_counts: { total: 2, completed: 0, failed: 2 },
    });
  });

  test('cannot be cancelled once it is completed', async () => {
    const id = await running(way, 1);
    await api.finish(id, [DONE]);
    await api.results(id);
    const { status, json, headers } = await cancel(way, id);
    expect([status, json.error.message, headers.get('x-should-retry')]).toEqual([
      409,
      "Cannot cancel a batch with status 'completed'.",
      'false',
    ]);
  });

  test('cannot be cancelled once it has failed', async () => {
    const { id } = await api.create(way, await api.file('x'));
    await api.validator.run();
    expect((await cancel(way, id)).json.error.message).toBe("Cannot cancel a batch with status 'failed'.");
  });

  test('never runs when it is cancelled before its validation', async () => {
    const { id } = await api.create(way, await api.file(line('"a"')));
    expect((await cancel(way, id)).json).toMatchObject({ status: 'cancelling', cancelled_at: null });
    expect(await api.get(id)).toMatchObject({
      status: 'cancelled',
      cancelling_at: expect.any(Number),
      cancelled_at: expect.any(Number),
      in_progress_at: null,
    });
    expect(await api.validator.run()).toBe(0);
    expect(await api.sql('select 1 from batches where id = $1::uuid', [uuidOf(id)])).toEqual([]);
  });

  test('ends in one of two ways when it is cancelled at the very end', async () => {
    for (let round = 0; round < 5; round++) {
      const id = await running(way, 1);
      await api.finish(id, [DONE]);
      const [answer, written] = await Promise.all([cancel(way, id), api.results(id)]);
      expect(written).toBe(true);
      const batch = await api.get(id);
      expect([answer.status, batch.status]).toEqual(answer.status === 200 ? [200, 'cancelled'] : [409, 'completed']);
      expect(batch).toMatchObject({ request_counts: { total: 1, completed: 1, failed: 0 } });
    }
  });
});

describe('a cancel in the middle of a validation', () => {
  test('wins: nothing is made of the batch', async () => {
    const arrived = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const slow = await createOpenaiApi(({ payloads }) => ({
      payloads: {
        ...payloads,
        async *stream(ref, offset, length) {
          arrived.resolve();
          await goOn.promise;
          yield* payloads.stream(ref, offset, length);
        },
      },
    }));
    try {
      const { id } = await slow.create('node', await slow.file(line('"a"')));
      const validation = slow.validator.run();
      await arrived.promise;
      const answer = await slow.call('node', { method: 'POST', path: `/v1/batches/${id}/cancel` });
      expect(answer.json.status).toBe('cancelling');
      goOn.resolve();
      await validation;
      expect((await slow.get(id)).status).toBe('cancelled');
      expect(await slow.sql('select 1 from batches')).toEqual([]);
    } finally {
      await slow.close();
    }
  });

  test('that was cut off between its two steps is ended by the next look', async () => {
    const { id } = await api.create('node', await api.file(line('"a"')));
    await api.sql('update openai_batches set cancelling_at = clock_timestamp() where id = $1::uuid', [uuidOf(id)]);
    expect((await api.get(id)).status).toBe('cancelling');
    await api.validator.run();
    expect((await api.get(id)).status).toBe('cancelled');
  });
});

describe('result files', () => {
  test('are written once when two replicas write them at the same time', async () => {
    const id = await running('node', 3);
    await api.finish(id, [DONE, REFUSED, DONE]);
    const before = await api.objects('output');
    const written = await Promise.all([api.results(id), api.results(id), api.results(id)]);
    expect(written.filter(Boolean)).toHaveLength(1);
    expect(await api.objects('output')).toHaveLength(before.length + 2);
    expect(await linesOf((await api.get(id)).output_file_id)).toHaveLength(2);
  });

  test('are not written when an answer cannot be read, and leave nothing behind', async () => {
    const id = await running('node', 2);
    await api.finish(id, [DONE, DONE]);
    await api.sql('update batch_items set output_crc = 1 where batch_id = $1::uuid and idx = 1', [uuidOf(id)]);
    const before = await api.objects('output');
    await expect(api.results(id)).rejects.toThrow('checksum');
    expect(await api.objects('output')).toEqual(before);
    expect((await api.get(id)).status).toBe('finalizing');
  });

  test('say of an answer that stays unreadable that it is lost, and have all others', async () => {
    const id = await running('node', 3);
    await api.finish(id, [DONE, DONE, REFUSED]);
    await api.sql('update batch_items set output_crc = 1 where batch_id = $1::uuid and idx > 0', [uuidOf(id)]);
    await api.sql("update batches set completed_at = completed_at - interval '2 minutes' where id = $1::uuid", [
      uuidOf(id),
    ]);
    expect(await api.results(id)).toBe(true);
    const batch = await api.get(id);
    expect(batch.status).toBe('completed');
    expect((await linesOf(batch.output_file_id)).map((text) => JSON.parse(text).custom_id)).toEqual(['i0']);
    expect((await linesOf(batch.error_file_id)).map((text) => JSON.parse(text))).toMatchObject([
      { custom_id: 'i1', response: null, error: { code: 'internal', message: 'load output: checksum mismatch' } },
      { custom_id: 'i2', response: { status_code: 400, body: { error: { message: 'upstream status 400' } } } },
    ]);
  });

  test('of many large answers have every line', async () => {
    const id = await running('node', 40);
    const body = (i: number) => `{"i":${i},"x":"${String(i % 10).repeat(400_000)}"}`;
    const endings = Array.from({ length: 40 }, (_, i): Ending => {
      return i % 4 === 3 ? { ...REFUSED, body: body(i) } : { ...DONE, body: body(i) };
    });
    await api.finish(id, endings);
    await api.results(id);
    const batch = await api.get(id);
    const read = async (fileId: string) =>
      (await linesOf(fileId)).map((text) => JSON.parse(text)).map((one) => [one.custom_id, one.response.body]);
    const expected = endings.map((_, i) => [`i${i}`, JSON.parse(body(i))]);
    expect(await read(batch.output_file_id)).toEqual(expected.filter((_, i) => i % 4 !== 3));
    expect(await read(batch.error_file_id)).toEqual(expected.filter((_, i) => i % 4 === 3));
  });
});

describe('the retention', () => {
  test('takes batches that ended before it, failed ones too, and no others', async () => {
    const old = await running('node', 1);
    await api.finish(old, [DONE]);
    await api.results(old);
    const failed = (await api.create('node', await api.file('x'))).id;
    await api.validator.run();
    const young = await running('node', 1);
    await api.finish(young, [DONE]);
    await api.results(young);
    const open = await running('node', 1);
    await api.sql(
      `update openai_batches set ended_at = clock_timestamp() - interval '3 days', created_at = created_at - interval '4 days'
      where id = any($1::uuid[])`,
      [[old, failed].map(uuidOf)],
    );
    const { db } = api.native.database;
    expect(await deleteExpiredOpenaiBatches(db, 2)).toBe(2);
    expect(await deleteExpiredOpenaiBatches(db, 2)).toBe(0);
    const rows = await api.sql('select id from openai_batches where id = any($1::uuid[]) order by id', [
      [old, failed, young, open].map(uuidOf),
    ]);
    expect(rows.map(({ id }) => id).sort()).toEqual([young, open].map(uuidOf).sort());
    // The row of a batch that the core's retention deleted is deleted with it.
    await api.sql('delete from batches where id = $1::uuid', [uuidOf(young)]);
    expect(await deleteExpiredOpenaiBatches(db, 2)).toBe(1);
  });
});
