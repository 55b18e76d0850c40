import { type Buffer, isUtf8 } from 'node:buffer';
import { ApiError, cutText } from '../../base/errors.ts';
import { findMembers, type Span } from '../../json/members.ts';
import { bomLength } from '../../json/scan.ts';
import { stringStart } from '../../json/strings.ts';
import { startWalk, walkAtOnce } from '../../json/walk.ts';
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
/** Properties are read up to this many, duplicates among them. */
const MAX_READ = 1000;
const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;
const MIN_EXPIRY_SECONDS = 3600;
const MAX_EXPIRY_SECONDS = 2_592_000;

/**
 * Checks the body of a create (front-doors section 3) and throws ApiError 400 for the first fault, `param` being its path.
 * Members that it does not name are ignored. Lengths of metadata are in characters (code points).
 */
export function parseCreate(body: Buffer): CreateRequest {
  const members = topLevelOf(body);
  const fields = fieldsOf(body, members);
  return {
    inputFileId: fileIdOf(fields.input_file_id),
    endpoint: endpointOf(fields.endpoint),
    ...windowOf(fields.completion_window),
    metadata: metadataOf(fields.metadata, body, members.get('metadata')),
    outputExpiresSeconds: expiryOf(fields.output_expires_after, body, members.get('output_expires_after')),
  };
}

type Fields = Readonly<Record<string, unknown>>;

const MEMBERS = ['input_file_id', 'endpoint', 'completion_window', 'metadata', 'output_expires_after'];

/** Only what is asked for is built, one level at a time: JSON.parse of a hostile MiB holds the event loop for 0.2 s. */
function topLevelOf(body: Buffer): Map<string, Span> {
  if (!isUtf8(body)) throw new ApiError('invalid_json', 'request body is not valid UTF-8');
  const found = findMembers(body, MEMBERS, bomLength(body));
  if (found.kind === 'invalid') throw new ApiError('invalid_json');
  if (found.kind === 'not_object') throw new ApiError('invalid_value', 'request body must be a JSON object');
  return found.members;
}

function fieldsOf(body: Buffer, members: Map<string, Span>): Fields {
  return Object.fromEntries([...members].map(([name, span]) => [name, shallowValue(body, span)]));
}

/** The value, but for what is in an object or a list. */
function shallowValue(body: Buffer, { start, end }: Span): unknown {
  if (body[start] === OPEN_BRACE) return {};
  return body[start] === OPEN_BRACKET ? [] : JSON.parse(body.toString('utf8', start, end));
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

function metadataOf(value: unknown, body: Buffer, span: Span | undefined): Record<string, string> | null {
  if (span === undefined || value === null) return null;
  if (!isObject(value)) throw wrongType('metadata', 'an object', value);
  const pairs = Object.entries(membersOf(body, span));
  if (pairs.length > MAX_PAIRS) throw tooManyPairs(pairs.length);
  for (const [key, text] of pairs) {
    const param = `metadata.${cutText(key)}`;
    checkLength('metadata', 'key', key, MAX_KEY);
    if (typeof text !== 'string') throw wrongType(param, 'a string', text);
    checkLength(param, 'value', text, MAX_VALUE);
  }
  return Object.fromEntries(pairs) as Record<string, string>;
}

/** All members of an object, a few more than are allowed at most: then it is refused by their number. */
function membersOf(body: Buffer, { start, end }: Span): Fields {
  const fields: Record<string, unknown> = {};
  let count = 0;
  let key = '';
  const walk = startWalk(start, 1, {
    key(keyAt) {
      count++;
      if (count <= MAX_READ) key = stringStart(body, keyAt, body.length);
    },
    value(from, to) {
      if (count <= MAX_READ) define(fields, key, shallowValue(body, { start: from, end: to }));
    },
  });
  walkAtOnce(walk, body.subarray(0, end));
  if (count > MAX_READ) throw tooManyPairs(count);
  return fields;
}

/** As JSON.parse does it: `__proto__` is a name like any other. */
function define(fields: Record<string, unknown>, key: string, value: unknown): void {
  Object.defineProperty(fields, key, { value, enumerable: true, configurable: true, writable: true });
}

function tooManyPairs(count: number): ApiError {
  const message = `Invalid 'metadata': too many properties. Expected at most ${MAX_PAIRS}, but got ${count} instead.`;
  return new ApiError('invalid_value', message, { param: 'metadata' });
}

function checkLength(param: string, what: string, text: string, max: number): void {
  // A character is one or two UTF-16 units: only in between does it have to be counted.
  if (text.length <= max) return;
  let length = 0;
  for (const _ of text) length++;
  if (length <= max) return;
  const message = `Invalid '${param}': ${what} too long. Expected at most ${max} characters, but got ${length} instead.`;
  throw new ApiError('invalid_value', message, { param });
}

function expiryOf(value: unknown, body: Buffer, span: Span | undefined): number | null {
  const param = 'output_expires_after';
  if (span === undefined || value === null) return null;
  if (!isObject(value)) throw wrongType(param, 'an object', value);
  const found = findMembers(body.subarray(span.start, span.end), ['anchor', 'seconds']);
  const members = found.kind === 'object' ? found.members : new Map<string, Span>();
  const { anchor, seconds } = fieldsOf(body.subarray(span.start, span.end), members);
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
