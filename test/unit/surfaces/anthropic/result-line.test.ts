import { Buffer } from 'node:buffer';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { atOnce } from '../../../../lib/base/turns.ts';
import type { FinalItem } from '../../../../lib/batch/results/final-items.ts';
import { onOneLine } from '../../../../lib/json/one-line.ts';
import { resultLine, resultType } from '../../../../lib/surfaces/anthropic/result-line.ts';

const OUTCOME: FinalItem = { idx: 0, state: 'discarded', error: null, errorKind: null, body: null, status: 0 };

function line(outcome: Partial<FinalItem> & { body?: Buffer | null }): string {
  const whole = { ...OUTCOME, ...outcome };
  return Buffer.concat(resultLine(Buffer.from('"id-1"'), whole, resultType(whole), 'req_own')).toString();
}

const completed = (body: string | Buffer) => line({ state: 'completed', body: Buffer.from(body), status: 200 });
const errored = (outcome: Partial<FinalItem>) => {
  const text = line({ error: 'batch item: some text', ...outcome });
  expect(text.endsWith('\n')).toBe(true);
  const { custom_id, result } = JSON.parse(text);
  expect([custom_id, result.type, result.error.type]).toEqual(['id-1', 'errored', 'error']);
  return { ...result.error.error, request_id: result.error.request_id };
};
const refusedWith = (status: number, body: unknown) =>
  errored({
    status,
    errorKind: 'upstream_error',
    body: Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)),
  });

describe('a line of the results', () => {
  test('has the answer byte for byte', () => {
    const body = '{"b":1, "a":9007199254740993,"a":"\\u0000\\ud800\\n \u2028 é"}';
    expect(completed(body)).toBe(`{"custom_id":"id-1","result":{"type":"succeeded","message":${body}}}\n`);
  });

  test('is one line, even if the answer was not', () => {
    const pretty = '{\r\n  "text": "a\\r\\nb",\n\t"n": [\n1\n]\n}\n';
    expect(completed(pretty)).toBe(
      '{"custom_id":"id-1","result":{"type":"succeeded","message":{    "text": "a\\r\\nb", \t"n": [ 1 ] } }}\n',
    );
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom('\n', '\r\n', '\r', ' \n\t'), (value, end) => {
        const text = JSON.stringify(value, null, 2).replaceAll('\n', end) + end;
        const flat = atOnce(onOneLine(Buffer.from(text))).toString();
        expect(flat).not.toMatch(/[\r\n]/);
        expect(flat).toHaveLength(text.length);
        expect(JSON.parse(flat)).toEqual(JSON.parse(text));
      }),
    );
  });

  test('leaves the answer in memory as it is', () => {
    const body = Buffer.from('{\n}');
    atOnce(onOneLine(body));
    expect(body.toString()).toBe('{\n}');
  });

  test('says canceled and expired', () => {
    expect(line({ state: 'cancelled' })).toBe('{"custom_id":"id-1","result":{"type":"canceled"}}\n');
    const expired = { error: 'batch item: expired', errorKind: 'timeout' as const };
    expect(line(expired)).toBe('{"custom_id":"id-1","result":{"type":"expired"}}\n');
  });

  test('is not written for an item that is not final, or completed without an answer', () => {
    expect(() => line({ state: 'running' })).toThrow('item 0');
    expect(() => line({ state: 'completed', body: null })).toThrow('item 0');
  });
});

describe('an error', () => {
  test("has the upstream's type, message bytes and request id", () => {
    const body =
      '{"type":"error","error":{"type":"overloaded_error","message":"a\\ud800\\u0000 \\"b\\""},"request_id":"req_up"}';
    const text = line({ error: 'batch item: x', errorKind: 'upstream_error', status: 400, body: Buffer.from(body) });
    expect(text).toBe(
      '{"custom_id":"id-1","result":{"type":"errored","error":{"type":"error","error":{"type":"overloaded_error",' +
        '"message":"a\\ud800\\u0000 \\"b\\""},"request_id":"req_up"}}}\n',
    );
  });

  test('keeps the message where the type is none of this API', () => {
    const error = { type: 'insufficient_quota', message: 'no money' };
    expect(refusedWith(402, { error })).toEqual({ type: 'billing_error', message: 'no money', request_id: 'req_own' });
  });

  test.each([
    ['not JSON', '<html>'],
    ['cut', '{"error":{"message":"x"'],
    ['without an error', '{"message":"x"}'],
    ['an array', '[1]'],
    ['an error that is text', '{"error":"x"}'],
    ['an error that is null', '{"error":null}'],
    ['a message that is no string', '{"error":{"message":{"a":1},"type":7}}'],
    ['an empty message', '{"error":{"message":"","type":""}}'],
    ['empty', ''],
  ])('has our text and the type of its status for a body that is %s', (_, body) => {
    expect(refusedWith(404, body)).toEqual({ type: 'not_found_error', message: 'some text', request_id: 'req_own' });
  });

  test("is read out of Gemini's list of one", () => {
    const error = { type: 'overloaded_error', message: 'no room' };
    expect(refusedWith(503, [{ error, request_id: 'req_up' }])).toEqual({ ...error, request_id: 'req_up' });
    expect(refusedWith(503, [{ error }, { error }])).toMatchObject({ message: 'some text' });
  });

  test('passes over bytes that are no UTF-8', () => {
    const body = Buffer.from('{"error":{"message":"\xff"}}', 'latin1');
    expect(errored({ status: 500, errorKind: 'upstream_error', body })).toMatchObject({ message: 'some text' });
  });

  test.each([
    [400, 'invalid_request_error'],
    [401, 'authentication_error'],
    [402, 'billing_error'],
    [403, 'permission_error'],
    [404, 'not_found_error'],
    [409, 'conflict_error'],
    [413, 'request_too_large'],
    [422, 'invalid_request_error'],
    [429, 'rate_limit_error'],
    [500, 'api_error'],
    [503, 'api_error'],
    [504, 'timeout_error'],
    [529, 'overloaded_error'],
  ])('of status %i is %s', (status, type) => {
    expect(refusedWith(status, '')).toMatchObject({ type });
  });

  test.each([
    ['invalid_request', 'invalid_request_error'],
    ['credential', 'authentication_error'],
    ['policy_disabled', 'permission_error'],
    ['model_not_allowed', 'permission_error'],
    ['model_not_found', 'not_found_error'],
    ['rate_limited', 'rate_limit_error'],
    ['keys_exhausted', 'overloaded_error'],
    ['timeout', 'timeout_error'],
    ['upstream_unreachable', 'api_error'],
    ['internal', 'api_error'],
  ] as const)('that no upstream gave, of kind %s, is %s', (errorKind, type) => {
    expect(errored({ errorKind })).toEqual({ type, message: 'some text', request_id: 'req_own' });
  });

  test('of an answer that was none, with a good status, goes by its kind', () => {
    expect(errored({ errorKind: 'bad_response', status: 200 })).toMatchObject({ type: 'api_error' });
  });

  test('of a time-out is one, whatever the last status was; and without an event there is still a type', () => {
    expect(errored({ errorKind: 'timeout', status: 503 })).toMatchObject({ type: 'timeout_error' });
    expect(errored({ errorKind: null, status: null })).toMatchObject({ type: 'api_error' });
  });

  test('escapes line separators in text of our own', () => {
    const text = line({ error: 'batch item: route "a\u2028b": model not found', errorKind: 'model_not_found' });
    expect(text).toContain('"route \\"a\\u2028b\\": model not found"');
  });
});
