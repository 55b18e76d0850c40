import { Buffer } from 'node:buffer';
import { describe, expect, test } from 'vitest';
import type { FinalItem } from '../../../../lib/batch/results/final-items.ts';
import { resultLine } from '../../../../lib/surfaces/openai/result-line.ts';

const BATCH = '01939f2e-1d2c-7abc-8def-0123456789ab';

function render(given: Partial<FinalItem>, customId = '"a"') {
  const outcome: FinalItem = {
    idx: 18,
    state: 'completed',
    error: null,
    errorKind: null,
    body: null,
    status: 200,
    ...given,
  };
  const { pieces, ...line } = resultLine(BATCH, Buffer.from(customId), outcome);
  const bytes = Buffer.concat(pieces);
  const text = bytes.toString();
  expect(bytes.indexOf(0x0a)).toBe(bytes.length - 1);
  expect(text).not.toMatch(/[\r\u2029]/);
  return { ...line, text: text.slice(0, -1), json: JSON.parse(text) };
}

const body = (text: string) => Buffer.from(text);
const discarded = (error: string, more: Partial<FinalItem> = {}) =>
  render({ state: 'discarded', error: `batch item: ${error}`, status: 0, ...more });

describe('a line of the output file', () => {
  test('has the custom_id and the answer as they came', () => {
    const answer = '{"id":9007199254740993,"x":"\\u0000\\ud800","x":1.0}';
    const { file, text } = render({ body: body(answer), status: 201 }, '"\\u0061 \u2028"');
    expect(file).toBe('output');
    expect(text).toBe(
      `{"id":"batch_req_01939f2e1d2c7abc8def0123456789ab00000012","custom_id":"\\u0061 \u2028","response":{"status_code":201,"request_id":"${BATCH}-0000000018","body":${answer}},"error":null}`,
    );
  });

  test('stays one line when the answer has several, and loses nothing else', () => {
    const { text } = render({ body: body('\ufeff{\r\n  "a": "b\\n",\n\t"c": 1\r\n}\n') });
    expect(text).toContain('"body":{    "a": "b\\n", \t"c": 1  } }');
  });

  test('has status 200 when nobody knows the status any more', () => {
    expect(render({ body: body('{}'), status: null }).json.response.status_code).toBe(200);
  });
});

describe('a line of the error file', () => {
  test('keeps status and JSON of an upstream that refused', () => {
    const { file, json, text } = discarded('upstream status 400', { body: body('{"error":\n{"n":1.0}}'), status: 400 });
    expect(file).toBe('error');
    expect(json).toMatchObject({ custom_id: 'a', error: null, response: { status_code: 400 } });
    expect(text).toContain('"body":{"error": {"n":1.0}}}');
  });

  test("takes Gemini's error out of its list of one", () => {
    const refused = (sent: string) => discarded('upstream status 400', { body: body(sent), status: 400 });
    const error = '{"error":{"code":400,\n"n":1.0}}';
    for (const sent of [`[${error}]`, `\ufeff \n[ ${error}\n]\n`]) {
      expect(refused(sent).text).toContain('"body":{"error":{"code":400, "n":1.0}}}');
    }
    for (const other of [
      '[]',
      '[1]',
      '[{"x":{"error":1}}]',
      '[{"error":1},{}]',
      '[[{"error":1}]]',
      '{"0":{"error":1}}',
    ]) {
      expect(refused(other).text).toContain(`"body":${other}}`);
    }
  });

  test.each([
    ['text', body('<h1>5\u20283 "down"\n</h1>'), '<h1>5\u20283 "down"\n</h1>'],
    ['cut JSON', body('{"error":'), '{"error":'],
    ['nothing', body(''), 'upstream status 503'],
    ['no kept body', null, 'upstream status 503'],
    ['bytes that are no text', Buffer.from([0x22, 0xff, 0x22]), '"\ufffd"'],
  ])('makes an error of %s from an upstream', (_, sent, message) => {
    const { json, text } = discarded('upstream status 503', { body: sent, status: 503 });
    expect(json.response).toMatchObject({ status_code: 503, body: { error: { message } } });
    expect(text).not.toContain('\u2028');
  });

  test.each<[string, Partial<FinalItem>, string, string]>([
    ['timed out after 300s', { errorKind: 'timeout', status: 429 }, 'request_timeout', 'timed out after 300s'],
    ['model is required', { errorKind: 'invalid_request' }, 'invalid_request', 'model is required'],
    [
      'upstream answered 200 with an error',
      { errorKind: 'bad_response', status: 200, body: body('{"error":1}') },
      'bad_response',
      'upstream answered 200 with an error',
    ],
    [
      'route "a\u2028": model not found',
      { errorKind: 'model_not_found' },
      'model_not_found',
      'route "a\u2028": model not found',
    ],
    ['odd', { errorKind: null, status: null }, 'internal', 'odd'],
  ])('says why there is no answer: %s', (error, more, code, message) => {
    const { file, json, text, expired } = discarded(error, more);
    expect({ file, expired }).toEqual({ file: 'error', expired: false });
    expect(json).toMatchObject({ response: null, error: { code, message } });
    expect(text).not.toContain('\u2028');
  });

  test('tells an expired and a cancelled request', () => {
    expect(discarded('expired', { errorKind: 'timeout' })).toMatchObject({
      expired: true,
      json: { response: null, error: { code: 'batch_expired' } },
    });
    expect(render({ state: 'cancelled', status: 0, errorKind: 'cancelled' })).toMatchObject({
      file: 'error',
      expired: false,
      json: { response: null, error: { code: 'batch_cancelled' } },
    });
  });
});
