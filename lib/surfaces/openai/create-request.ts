import { type Buffer, isUtf8 } from 'node:buffer';
import { ApiError, cutText } from '../../base/errors.ts';
import { findMembers } from '../../json/members.ts';
import { bomLength } from '../../json/scan.ts';
import { ENDPOINTS, type Endpoint } from './endpoints.ts';

/** What a create asks for, checked but for the file itself. */
export interface CreateRequest {
  /** As it was sent; not looked up. */
  inputFileId: string;
  endpoint: Endpoint;
  /** Null when absent or null. */
  metadata: Record<string, string> | null;
  /** Null: what the service has by default. */
  outputExpiresSeconds: number | null;
}

/** A create names a file: whatever is larger is none. */
export const MAX_CREATE_BYTES = 1024 * 1024;

const WINDOW = '24h';
const MAX_PAIRS = 16;
const MAX_KEY = 64;
const MAX_VALUE = 512;
const MIN_EXPIRY_SECONDS = 3600;
const MAX_EXPIRY_SECONDS = 2_592_000;

/**
 * Checks the body of a create (front-doors section 3) and throws ApiError 400 for the first fault, `param` being its path.
 * Members that it does not name are ignored. Lengths of metadata are in characters (code points).
 */
export function parseCreate(body: Buffer): CreateRequest {
  const fields = parseObject(body);
  return {
    inputFileId: fileIdOf(fields.input_file_id),
    endpoint: endpointOf(fields.endpoint),
    ...windowOf(fields.completion_window),
    metadata: metadataOf(fields.metadata),
    outputExpiresSeconds: expiryOf(fields.output_expires_after),
  };
}

type Fields = Readonly<Record<string, unknown>>;

/** What is larger says nothing that is valid: metadata has 111 KB at most. JSON.parse of a hostile MiB takes 0.2 s. */
const MAX_MEMBER_BYTES = 131_072;
const MEMBERS = ['input_file_id', 'endpoint', 'completion_window', 'metadata', 'output_expires_after'];

function parseObject(body: Buffer): Fields {
  if (!isUtf8(body)) throw new ApiError('invalid_json', 'request body is not valid UTF-8');
  const found = findMembers(body, MEMBERS, bomLength(body));
  if (found.kind === 'invalid') throw new ApiError('invalid_json', undefined);
  if (found.kind === 'not_object') throw new ApiError('invalid_value', 'request body must be a JSON object');
  const fields: Record<string, unknown> = {};
  for (const [name, { start, end }] of found.members) {
    if (end - start > MAX_MEMBER_BYTES) {
      const message = `Invalid '${name}': too long. Expected at most ${MAX_MEMBER_BYTES} bytes, but got ${end - start} instead.`;
      throw new ApiError('invalid_value', message, { param: name });
    }
    fields[name] = JSON.parse(body.toString('utf8', start, end));
  }
  return fields;
}

function fileIdOf(value: unknown): string {
  if (value === undefined || value === null) throw missing('input_file_id');
  if (typeof value !== 'string') throw wrongType('input_file_id', 'a string', value);
  return value;
}

function endpointOf(value: unknown): Endpoint {
  if (value === undefined || value === null) throw missing('endpoint');
  const endpoint = ENDPOINTS.find((known) => known === value);
  if (endpoint === undefined) throw unsupported('endpoint', value, ENDPOINTS);
  return endpoint;
}

function windowOf(value: unknown): Record<never, never> {
  if (value === undefined || value === null) throw missing('completion_window');
  if (value !== WINDOW) throw unsupported('completion_window', value, [WINDOW]);
  return {};
}

function metadataOf(value: unknown): Record<string, string> | null {
  if (value === undefined || value === null) return null;
  if (!isObject(value)) throw wrongType('metadata', 'an object', value);
  const pairs = Object.entries(value);
  if (pairs.length > MAX_PAIRS) {
    const message = `Invalid 'metadata': too many properties. Expected at most ${MAX_PAIRS}, but got ${pairs.length} instead.`;
    throw new ApiError('invalid_value', message, { param: 'metadata' });
  }
  for (const [key, text] of pairs) {
    const param = `metadata.${cutText(key)}`;
    checkLength('metadata', 'key', key, MAX_KEY);
    if (typeof text !== 'string') throw wrongType(param, 'a string', text);
    checkLength(param, 'value', text, MAX_VALUE);
  }
  return value as Record<string, string>;
}

function checkLength(param: string, what: string, text: string, max: number): void {
  // A character is one or two UTF-16 units: only in between does it have to be counted.
  if (text.length <= max) return;
  const length = [...text].length;
  if (length <= max) return;
  const message = `Invalid '${param}': ${what} too long. Expected at most ${max} characters, but got ${length} instead.`;
  throw new ApiError('invalid_value', message, { param });
}

function expiryOf(value: unknown): number | null {
  const param = 'output_expires_after';
  if (value === undefined || value === null) return null;
  if (!isObject(value)) throw wrongType(param, 'an object', value);
  const { anchor, seconds } = value;
  if (anchor === undefined) throw missing(`${param}.anchor`);
  if (anchor !== 'created_at') throw unsupported(`${param}.anchor`, anchor, ['created_at']);
  if (seconds === undefined) throw missing(`${param}.seconds`);
  const whole = typeof seconds === 'number' && Number.isInteger(seconds);
  if (!whole || seconds < MIN_EXPIRY_SECONDS || seconds > MAX_EXPIRY_SECONDS) {
    const rule = `Expected a whole number from ${MIN_EXPIRY_SECONDS} to ${MAX_EXPIRY_SECONDS}.`;
    throw new ApiError('invalid_value', `Invalid '${param}.seconds'. ${rule}`, { param: `${param}.seconds` });
  }
  return seconds;
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function missing(param: string): ApiError {
  return new ApiError('missing_required_parameter', `Missing required parameter: '${param}'.`, { param });
}

function wrongType(param: string, expected: string, value: unknown): ApiError {
  const got = value === null ? 'null' : Array.isArray(value) ? 'an array' : `a value of type ${typeof value}`;
  const message = `Invalid type for '${param}': expected ${expected}, but got ${got} instead.`;
  return new ApiError('invalid_value', message, { param });
}

function unsupported(param: string, value: unknown, known: readonly string[]): ApiError {
  const given = typeof value === 'string' ? `'${cutText(value)}'` : `a value that is no string`;
  const values = known.map((one) => `'${one}'`).join(', ');
  const message = `Invalid value for '${param}': ${given}. Supported values are: ${values}.`;
  return new ApiError('invalid_value', message, { param });
}
