import { Buffer } from 'node:buffer';
import { describe, expect, test } from 'vitest';
import { ApiError } from '../../../../lib/base/errors.ts';
import { parseCreate } from '../../../../lib/surfaces/openai/create-request.ts';

const FINE = { input_file_id: 'file-1', endpoint: '/v1/chat/completions', completion_window: '24h' };

function parse(more: object | string) {
  return parseCreate(Buffer.from(typeof more === 'string' ? more : JSON.stringify({ ...FINE, ...more })));
}

function fault(more: object | string): Partial<ApiError> {
  try {
    parse(more);
  } catch (error) {
    expect(error).toBeInstanceOf(ApiError);
    return error as ApiError;
  }
  throw new Error('it was accepted');
}

describe('the body of a create', () => {
  test('is taken with what it must have', () => {
    expect(parse({ unknown: 1 })).toEqual({
      inputFileId: 'file-1',
      endpoint: '/v1/chat/completions',
      metadata: null,
      outputExpiresSeconds: null,
    });
  });

  test('may have null where it may have nothing', () => {
    expect(parse({ metadata: null, output_expires_after: null })).toMatchObject({ metadata: null });
  });

  test('is refused by the number of its metadata, however many there are, and by the first that is no string', () => {
    const many = (n: number) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`k${i}`, 'v']));
    for (const n of [17, 1000, 1001, 50_000]) {
      const message = `Invalid 'metadata': too many properties. Expected at most 16, but got ${n} instead.`;
      expect(fault({ metadata: many(n) })).toMatchObject({ message, param: 'metadata' });
    }
    const deep = JSON.stringify(FINE).replace(
      '}',
      `,"metadata":{"a":"b","k":${'['.repeat(200_000)}${']'.repeat(200_000)}}}`,
    );
    expect(fault(deep)).toMatchObject({
      message: "Invalid type for 'metadata.k': expected a string, but got an array instead.",
    });
  });

  test('keeps metadata as JSON.parse reads it, duplicates and odd names among them', () => {
    const text = '{"a":"1","\\u0061":"2","__proto__":"x","7":"y"}';
    const { metadata } = parse(JSON.stringify(FINE).replace('}', `,"metadata":${text}}`));
    expect(JSON.stringify(metadata)).toBe(JSON.stringify(JSON.parse(text)));
  });

  test('is taken with all it can have, at the limits', () => {
    const metadata = Object.fromEntries(
      Array.from({ length: 16 }, (_, i) => [`${i}`.padStart(64, '😀'.repeat(31)), '😀'.repeat(512)]),
    );
    const given = parse({
      endpoint: '/v1/embeddings',
      metadata,
      output_expires_after: { anchor: 'created_at', seconds: 3600 },
    });
    expect(given).toMatchObject({ endpoint: '/v1/embeddings', metadata, outputExpiresSeconds: 3600 });
  });

  test('with an empty file id is refused by name', () => {
    expect(fault({ input_file_id: '' })).toMatchObject({
      code: 'missing_required_parameter',
      param: 'input_file_id',
      message: 'input_file_id is required',
    });
  });

  test.each([
    ['input_file_id', { input_file_id: undefined }],
    ['input_file_id', { input_file_id: null }],
    ['endpoint', { endpoint: undefined }],
    ['completion_window', { completion_window: undefined }],
    ['output_expires_after.anchor', { output_expires_after: { seconds: 3600 } }],
    ['output_expires_after.seconds', { output_expires_after: { anchor: 'created_at' } }],
  ])('without %s is refused', (param, more) => {
    expect(fault(more)).toMatchObject({
      code: 'missing_required_parameter',
      status: 400,
      param,
      message: `Missing required parameter: '${param}'.`,
    });
  });

  test.each([
    ['input_file_id', { input_file_id: 1 }],
    ['endpoint', { endpoint: '/v1/completions' }],
    ['endpoint', { endpoint: 'toString' }],
    ['endpoint', { endpoint: ['/v1/embeddings'] }],
    ['completion_window', { completion_window: '48h' }],
    ['completion_window', { completion_window: '' }],
    ['completion_window', { completion_window: 24 }],
    ['metadata', { metadata: [] }],
    ['metadata', { metadata: 'x' }],
    ['metadata', { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [i, ''])) }],
    ['metadata', { metadata: { ['k'.repeat(65)]: '' } }],
    ['metadata.tags', { metadata: { tags: ['a'] } }],
    ['metadata.n', { metadata: { n: 1 } }],
    ['metadata.v', { metadata: { v: 'v'.repeat(513) } }],
    ['output_expires_after', { output_expires_after: 3600 }],
    ['output_expires_after.anchor', { output_expires_after: { anchor: 'ended_at', seconds: 3600 } }],
    ['output_expires_after.seconds', { output_expires_after: { anchor: 'created_at', seconds: 3599 } }],
    ['output_expires_after.seconds', { output_expires_after: { anchor: 'created_at', seconds: 2_592_001 } }],
    ['output_expires_after.seconds', { output_expires_after: { anchor: 'created_at', seconds: 3600.5 } }],
    ['output_expires_after.seconds', { output_expires_after: { anchor: 'created_at', seconds: '3600' } }],
  ])('with a wrong %s is refused', (param, more) => {
    expect(fault(more)).toMatchObject({ code: 'invalid_value', status: 400, param });
  });

  test.each([
    ['invalid_json', '{'],
    ['invalid_json', ''],
    ['invalid_value', '[]'],
    ['invalid_value', 'null'],
  ])('that is no object is refused as %s', (code, text) => {
    expect(fault(text)).toMatchObject({ code, status: 400 });
  });

  test('names what the limit is and what was sent', () => {
    expect(fault({ metadata: { v: 'v'.repeat(600) } }).message).toMatch(/512.*600/);
    expect(fault({ completion_window: '1h' }).message).toBe(
      "Invalid value for 'completion_window': '1h'. Supported values are: '24h'.",
    );
  });
});
