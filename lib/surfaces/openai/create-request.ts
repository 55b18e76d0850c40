import { type Buffer, isUtf8 } from 'node:buffer';
import { z } from 'zod';
import { ApiError, cutText } from '../../base/errors.ts';
import { isObject, paramOf, parseBy, requireObject, type Wording } from '../../base/parse.ts';
import { bomLength } from '../../json/scan.ts';
import { MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS } from '../files/file-options.ts';
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
  const given = Object.entries(parseObject(body)).filter(([, value]) => value !== null);
  const create = parseBy(CREATE, Object.fromEntries(given), OPENAI);
  return {
    inputFileId: create.input_file_id,
    endpoint: create.endpoint,
    metadata: create.metadata ?? null,
    outputExpiresSeconds: create.output_expires_after?.seconds ?? null,
  };
}

function parseObject(body: Buffer): Fields {
  if (!isUtf8(body)) throw new ApiError('invalid_json', 'request body is not valid UTF-8');
  let value: unknown;
  try {
    value = JSON.parse(body.toString('utf8', bomLength(body)));
  } catch (cause) {
    throw new ApiError('invalid_json', undefined, { cause });
  }
  return requireObject(value);
}

/**
 * The first fault of metadata. By hand: a fault of a key names `metadata`, one of a value `metadata.<key>` with the key cut.
 */
function pairsFault(metadata: Fields): { message: string; path: string[] } | null {
  const pairs = Object.entries(metadata);
  if (pairs.length > MAX_PAIRS) {
    const got = `Expected at most ${MAX_PAIRS}, but got ${pairs.length} instead.`;
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
  const length = [...text].length;
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
