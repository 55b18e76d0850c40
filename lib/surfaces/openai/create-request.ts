import { type Buffer, isUtf8 } from 'node:buffer';
import { z } from 'zod';
import { ApiError, cutText } from '../../base/errors.ts';
import { isObject, paramOf, parseBy, type Wording } from '../../base/parse.ts';
import { findMembers, type Span } from '../../json/members.ts';
import { bomLength } from '../../json/scan.ts';
import { stringStart } from '../../json/strings.ts';
import { startWalk, walkAtOnce } from '../../json/walk.ts';
import { MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS } from '../files/file-options.ts';
import { type BatchEndpoint, ENDPOINTS } from './endpoints.ts';

/** The contents of a create, checked, except the file itself. */
export interface CreateRequest {
  /** As it was sent; not looked up. */
  inputFileId: string;
  endpoint: BatchEndpoint;
  /** Null when absent or null. */
  metadata: Record<string, string> | null;
  /** Null: what the service has by default. */
  outputExpiresSeconds: number | null;
}

/** A create names a file: anything larger cannot be a create request. */
export const MAX_CREATE_BYTES = 1024 * 1024;

/** Pairs of metadata are read up to this many, duplicates among them. */
const MAX_READ = 1000;
const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;
const WINDOW = '24h';
const MAX_PAIRS = 16;
const MAX_KEY = 64;
const MAX_VALUE = 512;

type Fields = Readonly<Record<string, unknown>>;
type Issue = z.core.$ZodRawIssue;

/** The schema's messages are whole sentences, in OpenAI's words. */
const OPENAI: Wording = {
  missing: (param) => `Missing required parameter: '${param}'.`,
  wrong: (_, message) => message,
};

const wholeSeconds = () => {
  const rule = `Expected a whole number from ${MIN_EXPIRY_SECONDS} to ${MAX_EXPIRY_SECONDS}.`;
  const error = (issue: Issue) => `Invalid '${paramOf(issue.path ?? [])}'. ${rule}`;
  return z.int({ error }).min(MIN_EXPIRY_SECONDS, { error }).max(MAX_EXPIRY_SECONDS, { error });
};

const CREATE = z.object({
  input_file_id: z.string({ error: wrongType('a string') }),
  endpoint: z.enum(ENDPOINTS, { error: unsupported(ENDPOINTS) }),
  completion_window: z.literal(WINDOW, { error: unsupported([WINDOW]) }),
  metadata: z
    .custom<Record<string, string>>(isObject, { error: wrongType('an object'), abort: true })
    .superRefine((metadata, { addIssue }) => {
      const fault = pairsFault(metadata);
      if (fault !== null) addIssue({ code: 'custom', ...fault });
    })
    .optional(),
  output_expires_after: z
    .object(
      { anchor: z.literal('created_at', { error: unsupported(['created_at']) }), seconds: wholeSeconds() },
      { error: wrongType('an object') },
    )
    .optional(),
});

/**
 * Checks the body of a create ("Create of an OpenAI batch" in docs/spec/openai-surface.md) and throws ApiError 400 for
 * the first fault, `param` being its path. Members that it does not name are ignored; null stands for an absent one.
 * Lengths of metadata are in characters (code points).
 */
export function parseCreate(body: Buffer): CreateRequest {
  const given = Object.entries(readFields(body)).filter(([, value]) => value !== null);
  const create = parseBy(CREATE, Object.fromEntries(given), OPENAI);
  if (create.input_file_id === '') {
    throw new ApiError('missing_required_parameter', 'input_file_id is required', { param: 'input_file_id' });
  }
  return {
    inputFileId: create.input_file_id,
    endpoint: create.endpoint,
    metadata: create.metadata ?? null,
    outputExpiresSeconds: create.output_expires_after?.seconds ?? null,
  };
}

/**
 * The members that a create names. Only those are built, one level at a time: JSON.parse of a hostile MiB holds the event
 * loop for 0.2 s.
 */
function readFields(body: Buffer): Fields {
  if (!isUtf8(body)) throw new ApiError('invalid_json', 'request body is not valid UTF-8');
  const found = findMembers(body, Object.keys(CREATE.shape), bomLength(body));
  if (found.kind === 'invalid') throw new ApiError('invalid_json');
  if (found.kind === 'not_object') throw new ApiError('invalid_value', 'request body must be a JSON object');
  const fields: Record<string, unknown> = {};
  for (const [name, span] of found.members) {
    const nested = body[span.start] === OPEN_BRACE && NESTED[name as keyof typeof NESTED];
    fields[name] = nested ? nested(body.subarray(span.start, span.end)) : shallowValue(body, span);
  }
  return fields;
}

/** How the objects inside a create are read. */
const NESTED = {
  metadata: membersOf,
  output_expires_after(object: Buffer): Fields {
    const found = findMembers(object, ['anchor', 'seconds']);
    const members = found.kind === 'object' ? [...found.members] : [];
    return Object.fromEntries(members.map(([name, span]) => [name, shallowValue(object, span)]));
  },
};

/** The value, without what is inside an object or a list. */
function shallowValue(body: Buffer, { start, end }: Span): unknown {
  if (body[start] === OPEN_BRACE) return {};
  return body[start] === OPEN_BRACKET ? [] : JSON.parse(body.toString('utf8', start, end));
}

/** Metadata with so many pairs that they were only counted. */
class ManyPairs {
  readonly pairs: number;
  constructor(pairs: number) {
    this.pairs = pairs;
  }
}

/** All members of an object; beyond MAX_READ only their number, which is too large then. */
function membersOf(object: Buffer): Fields | ManyPairs {
  const fields: Fields = {};
  let count = 0;
  let key = '';
  const walk = startWalk(0, 1, {
    key(keyAt) {
      count++;
      if (count <= MAX_READ) key = stringStart(object, keyAt, object.length);
    },
    value(start, end) {
      if (count <= MAX_READ) define(fields, key, shallowValue(object, { start, end }));
    },
  });
  walkAtOnce(walk, object);
  return count > MAX_READ ? new ManyPairs(count) : fields;
}

/** As JSON.parse does it: `__proto__` is a name like any other. */
function define(fields: Fields, key: string, value: unknown): void {
  Object.defineProperty(fields, key, { value, enumerable: true, configurable: true, writable: true });
}

/**
 * The first fault of metadata. By hand: a fault of a key names `metadata`, one of a value `metadata.<key>` with the key
 * cut.
 */
function pairsFault(metadata: Fields | ManyPairs): { message: string; path: string[] } | null {
  const pairs = metadata instanceof ManyPairs ? [] : Object.entries(metadata);
  const count = metadata instanceof ManyPairs ? metadata.pairs : pairs.length;
  if (count > MAX_PAIRS) {
    const got = `Expected at most ${MAX_PAIRS}, but got ${count} instead.`;
    return { message: `Invalid 'metadata': too many properties. ${got}`, path: [] };
  }
  for (const [key, value] of pairs) {
    const ofKey = tooLong('metadata', 'key', key, MAX_KEY);
    if (ofKey !== null) return { message: ofKey, path: [] };
    const name = cutText(key);
    const param = `metadata.${name}`;
    const ofValue =
      typeof value === 'string' ? tooLong(param, 'value', value, MAX_VALUE) : typeFault(param, 'a string', value);
    if (ofValue !== null) return { message: ofValue, path: [name] };
  }
  return null;
}

function tooLong(param: string, what: string, text: string, max: number): string | null {
  // A character is one or two UTF-16 units: only in between does it have to be counted.
  if (text.length <= max) return null;
  let length = 0;
  for (const _ of text) length++;
  if (length <= max) return null;
  return `Invalid '${param}': ${what} too long. Expected at most ${max} characters, but got ${length} instead.`;
}

function wrongType(expected: string) {
  return ({ path = [], input }: Issue) => typeFault(paramOf(path), expected, input);
}

function typeFault(param: string, expected: string, value: unknown): string {
  const got = value === null ? 'null' : Array.isArray(value) ? 'an array' : `a value of type ${typeof value}`;
  return `Invalid type for '${param}': expected ${expected}, but got ${got} instead.`;
}

function unsupported(known: readonly string[]) {
  const values = known.map((one) => `'${one}'`).join(', ');
  return ({ path = [], input }: Issue) => {
    const given = typeof input === 'string' ? `'${cutText(input)}'` : `a value that is no string`;
    return `Invalid value for '${paramOf(path)}': ${given}. Supported values are: ${values}.`;
  };
}
