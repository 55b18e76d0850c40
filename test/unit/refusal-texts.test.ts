import { Buffer } from 'node:buffer';
import { describe, expect, test } from 'vitest';
import { ApiError } from '../../lib/base/errors.ts';
import { PARAM_AND_RULE, parseBy } from '../../lib/base/parse.ts';
import { UPLOAD_BODY } from '../../lib/batch/submit/create-upload.ts';
import { fileOptions } from '../../lib/surfaces/files/file-options.ts';
import { parseCreate } from '../../lib/surfaces/openai/create-request.ts';
import { parseFilter } from '../../lib/usage/query.ts';

// Clients show these texts to people, and some programs match them: each is fixed to the letter.

type Refusal = [code: string, param: string | null, message: string];

function refusalOf(work: () => unknown): Refusal {
  try {
    work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    expect(error.status).toBe(400);
    return [error.code, error.param, error.message];
  }
  throw new Error('it was accepted');
}

const missing = (param: string, message: string): Refusal => ['missing_required_parameter', param, message];
const wrong = (param: string, message: string): Refusal => ['invalid_value', param, message];

describe('the create of an OpenAI batch says', () => {
  const FINE = { input_file_id: 'file-1', endpoint: '/v1/chat/completions', completion_window: '24h' };
  const ENDPOINTS = "'/v1/chat/completions', '/v1/responses', '/v1/embeddings'";
  const noMember = (param: string) => missing(param, `Missing required parameter: '${param}'.`);
  const type = (param: string, expected: string, got: string) =>
    wrong(param, `Invalid type for '${param}': expected ${expected}, but got ${got} instead.`);
  const unsupported = (param: string, given: string, values: string) =>
    wrong(param, `Invalid value for '${param}': ${given}. Supported values are: ${values}.`);
  const pairs = (n: number) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`k${i}`, '']));
  const expiry = (seconds: unknown) => ({ output_expires_after: { anchor: 'created_at', seconds } });
  const wrongSeconds = wrong(
    'output_expires_after.seconds',
    "Invalid 'output_expires_after.seconds'. Expected a whole number from 3600 to 2592000.",
  );

  test.for<[object, Refusal]>([
    [{ input_file_id: undefined }, noMember('input_file_id')],
    [{ input_file_id: null, endpoint: 1 }, noMember('input_file_id')],
    [{ input_file_id: 1 }, type('input_file_id', 'a string', 'a value of type number')],
    [{ input_file_id: [] }, type('input_file_id', 'a string', 'an array')],
    [{ input_file_id: {} }, type('input_file_id', 'a string', 'a value of type object')],
    [{ endpoint: null }, noMember('endpoint')],
    [{ endpoint: 'x', completion_window: undefined }, unsupported('endpoint', "'x'", ENDPOINTS)],
    [{ endpoint: `\n${'x'.repeat(128)}` }, unsupported('endpoint', `'\\u000a${'x'.repeat(127)}'`, ENDPOINTS)],
    [{ endpoint: ['/v1/embeddings'] }, unsupported('endpoint', 'a value that is no string', ENDPOINTS)],
    [{ completion_window: null }, noMember('completion_window')],
    [{ completion_window: '48h', metadata: 1 }, unsupported('completion_window', "'48h'", "'24h'")],
    [{ completion_window: 24 }, unsupported('completion_window', 'a value that is no string', "'24h'")],
    [{ metadata: [] }, type('metadata', 'an object', 'an array')],
    [{ metadata: 'x' }, type('metadata', 'an object', 'a value of type string')],
    [
      { metadata: { ...pairs(16), n: 1 } },
      wrong('metadata', "Invalid 'metadata': too many properties. Expected at most 16, but got 17 instead."),
    ],
    [
      { metadata: { ['k'.repeat(65)]: 1 } },
      wrong('metadata', "Invalid 'metadata': key too long. Expected at most 64 characters, but got 65 instead."),
    ],
    [{ metadata: { a: '', n: 1, m: 2 } }, type('metadata.n', 'a string', 'a value of type number')],
    [{ metadata: { n: null } }, type('metadata.n', 'a string', 'null')],
    [{ metadata: { 'a.b\n': true } }, type('metadata.a.b\\u000a', 'a string', 'a value of type boolean')],
    [
      { metadata: { v: '😀'.repeat(513) } },
      wrong(
        'metadata.v',
        "Invalid 'metadata.v': value too long. Expected at most 512 characters, but got 513 instead.",
      ),
    ],
    [{ metadata: JSON.parse('{"__proto__": 1}') }, type('metadata.__proto__', 'a string', 'a value of type number')],
    [{ output_expires_after: 3600 }, type('output_expires_after', 'an object', 'a value of type number')],
    [{ output_expires_after: [] }, type('output_expires_after', 'an object', 'an array')],
    [{ output_expires_after: {} }, noMember('output_expires_after.anchor')],
    [
      { output_expires_after: { anchor: null } },
      unsupported('output_expires_after.anchor', 'a value that is no string', "'created_at'"),
    ],
    [
      { output_expires_after: { anchor: 'ended_at' } },
      unsupported('output_expires_after.anchor', "'ended_at'", "'created_at'"),
    ],
    [{ output_expires_after: { anchor: 'created_at' } }, noMember('output_expires_after.seconds')],
    [expiry(null), wrongSeconds],
    [expiry('3600'), wrongSeconds],
    [expiry(3599), wrongSeconds],
    [expiry(2_592_001), wrongSeconds],
    [expiry(3600.5), wrongSeconds],
    [expiry(1e300), wrongSeconds],
  ])('of %j', ([more, refusal]) => {
    const body = Buffer.from(JSON.stringify({ ...FINE, ...more }));
    expect(refusalOf(() => parseCreate(body))).toEqual(refusal);
  });

  test.for<[string, string, Refusal]>([
    ['an array', '[]', ['invalid_value', null, 'request body must be a JSON object']],
    ['null', 'null', ['invalid_value', null, 'request body must be a JSON object']],
    ['a string', '"x"', ['invalid_value', null, 'request body must be a JSON object']],
    ['half an object', '{', ['invalid_json', null, 'request body is not valid JSON']],
    ['bytes that are no UTF-8', '\xff', ['invalid_json', null, 'request body is not valid UTF-8']],
  ])('what is wrong with %s', ([, body, refusal]) => {
    expect(refusalOf(() => parseCreate(Buffer.from(body, 'latin1')))).toEqual(refusal);
  });
});

describe('the form of a file says', () => {
  const BATCH = { purpose: 'batch' };
  const ANCHOR = 'expires_after[anchor]';
  const SECONDS = 'expires_after[seconds]';
  const wrongSeconds = wrong(SECONDS, `${SECONDS} must be a whole number from 3600 to 2592000`);
  const wrongAnchor = wrong(ANCHOR, `${ANCHOR} must be created_at`);

  test.for<[Record<string, string>, Refusal]>([
    [{}, missing('purpose', 'purpose is required')],
    [{ purpose: 'vision', [SECONDS]: '1' }, wrong('purpose', "purpose must be batch, not 'vision'")],
    [{ purpose: '\0' }, wrong('purpose', "purpose must be batch, not '\\u0000'")],
    [{ purpose: '' }, wrong('purpose', "purpose must be batch, not ''")],
    [
      { ...BATCH, expires_after: '', [ANCHOR]: 'x' },
      wrong('expires_after', `expires_after is sent as two parts, ${ANCHOR} and ${SECONDS}`),
    ],
    [{ ...BATCH, [SECONDS]: '1' }, missing(ANCHOR, `${ANCHOR} is required`)],
    [{ ...BATCH, [ANCHOR]: 'x' }, missing(SECONDS, `${SECONDS} is required`)],
    [{ ...BATCH, [ANCHOR]: 'x', [SECONDS]: '1' }, wrongAnchor],
    [{ ...BATCH, [ANCHOR]: '', [SECONDS]: '3600' }, wrongAnchor],
    ...['', '3599', '2592001', '1e4', '3600.0', ' 3600', '00000003600', '-3600'].map(
      (text): [Record<string, string>, Refusal] => [
        { ...BATCH, [ANCHOR]: 'created_at', [SECONDS]: text },
        wrongSeconds,
      ],
    ),
  ])('of %j', ([fields, refusal]) => {
    expect(refusalOf(() => fileOptions(new Map(Object.entries(fields))))).toEqual(refusal);
  });

  test('nothing of a form at the limits', () => {
    const fields = { ...BATCH, [ANCHOR]: 'created_at', [SECONDS]: '0002592000', upload_id: 'u', filename: 'f' };
    expect(fileOptions(new Map(Object.entries(fields)))).toEqual({
      expiresAfterSeconds: 2_592_000,
      uploadId: 'u',
      filename: 'f',
    });
    expect(fileOptions(new Map(Object.entries(BATCH)))).toEqual({
      expiresAfterSeconds: 2_592_000,
      uploadId: null,
      filename: null,
    });
  });
});

describe('the announcement of an upload says', () => {
  const wrongBytes = wrong('bytes', 'bytes must be a whole number from 1');

  test.for<[object, Refusal]>([
    [{}, missing('bytes', 'bytes is required')],
    ...[null, '1', 0, -1, 1.5, 2 ** 53, 1e300, true, [1]].map((bytes): [object, Refusal] => [{ bytes }, wrongBytes]),
  ])('of %j', ([body, refusal]) => {
    expect(refusalOf(() => parseBy(UPLOAD_BODY, body, PARAM_AND_RULE))).toEqual(refusal);
  });

  test('nothing of a whole number', () => {
    const largest = { bytes: 2 ** 53 - 1, more: 1 };
    expect(parseBy(UPLOAD_BODY, largest, PARAM_AND_RULE)).toEqual({ bytes: largest.bytes });
  });
});

describe('a usage query says', () => {
  const status = wrong('status', 'status must be a whole number from 0 to 999');
  const statusMin = wrong('status_min', 'status_min must be a whole number from 0 to 999');
  const statusClass = wrong('status_class', 'status_class must be a digit, or one such as 2xx');
  const attempts = wrong('attempts', 'attempts must be a whole number from 0 to 2147483647');
  const cost = wrong('cost_nanos', 'cost_nanos must be a whole number from 0 to 9223372036854775807');
  const since = wrong('since', 'since must be <N>s, <N>m, <N>h or <N>d');
  const timeOf = (param: string) =>
    wrong(param, `${param} must be an RFC 3339 time from 1970 to 9999, such as 2027-01-31T12:00:00Z`);

  test.for<[string, Refusal]>([
    ['modle=x&status=x', wrong('modle', 'modle is no parameter of this call')],
    [`${'m'.repeat(200)}=x`, wrong('m'.repeat(128), `${'m'.repeat(128)} is no parameter of this call`)],
    ['since=1h&since=2h&status=x', wrong('since', 'since is given twice')],
    ['from=x&to=x&to=x', wrong('to', 'to is given twice')],
    ['since=1h&to=x', wrong('since', 'since does not go with from or to')],
    ['since=x', since],
    ['since=', since],
    ['from=x&to=y&status=x', timeOf('to')],
    ['from=x', timeOf('from')],
    ['from=2027-01-02T00:00:00Z&to=2027-01-01T00:00:00Z', wrong('from', 'from must not be later than to')],
    ['status=200&status=x&status_class=x', status],
    ['status=1000', status],
    ['status=', status],
    ['status_class=x&status_min=x', statusClass],
    ['status_class=2xxx', statusClass],
    ['status_min=x&status_max=x', statusMin],
    ['status_min=x&status_min=y', wrong('status_min', 'status_min is given twice')],
    ['status_max=-1', wrong('status_max', 'status_max must be a whole number from 0 to 999')],
    ['error=true&error=1&batch_idx=x', wrong('error', 'error must be true or false')],
    ['batch_idx=x&duration_ms=x', wrong('batch_idx', 'batch_idx must be a whole number from 0 to 2147483647')],
    ['duration_ms=1.5', wrong('duration_ms', 'duration_ms must be a whole number from 0 to 2147483647')],
    ['attempts=2147483648', attempts],
    [`attempts=${'0'.repeat(17)}`, attempts],
    ['cost_nanos=9223372036854775808', cost],
    ['cost_nanos=-1&ts=x', cost],
    ['ts=yesterday', timeOf('ts')],
  ])('of %s', ([query, refusal]) => {
    expect(refusalOf(() => parseFilter({ query: new URLSearchParams(query), owner: null }, 0, []))).toEqual(refusal);
  });
});
