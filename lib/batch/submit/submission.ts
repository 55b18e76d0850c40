import { ApiError } from '../../base/errors.ts';
import { SHAPES, type Shape } from '../../model/catalog.ts';
import { type SlicedItems, sliceInTurns } from './slice.ts';

/** A native submission that passed every check that is made before anything is written. */
export interface Submission {
  shape: Shape;
  items: SlicedItems;
  maxAttempts: number;
  onLimit: 'fail' | 'wait';
  completionWindowSeconds: number | null;
}

/** Of one item beside its bytes: where it stands, in a list that grows by doubling. */
const SPAN_BYTES = 32;
/** The same with its checksum, and the text of both in the statement. */
const ITEM_BYTES = 128;

/** The memory to find the items of a submit of so many bytes: the bytes themselves, and the most items. */
export function parseMemory(bytes: number, maxItems: number): number {
  return bytes + SPAN_BYTES * Math.min(maxItems, Math.ceil(bytes / 2));
}

/** The memory to record them. */
export function recordMemory(bytes: number, { items }: Submission): number {
  return bytes + ITEM_BYTES * items.count;
}

/** An option longer than this is wrong whatever it says, and is not worth parsing. */
const MAX_OPTION_BYTES = 1024;
const MIN_WINDOW_SECONDS = 30 * 60;
const MAX_WINDOW_SECONDS = 7 * 86_400;
const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

/**
 * Checks a native submit: JSON, the surface it is meant for, `shape`, `requests`, then the options ("Submit options" in
 * docs/spec/native-api.md). Other top-level members are ignored, `null` as an option counts as absent, and what an item
 * holds is judged when it runs. A create of the OpenAI surface comes here when it is over its limit, `maxOpenaiBytes`. Throws ApiError 400; the messages of limits name the limit and what was sent.
 */
export async function parseSubmission(
  body: Buffer,
  maxItems: number,
  maxOpenaiBytes = Number.POSITIVE_INFINITY,
): Promise<Submission | { uploadId: string }> {
  const { members, requests, option } = await read(body, maxItems);
  const foreign = ['input_file_id', 'endpoint'].find((name) => members.has(name));
  const uploadId = option('upload_id');
  if (uploadId !== undefined && !foreign) {
    if (members.has('requests')) {
      throw new ApiError('invalid_value', 'upload_id cannot stand beside requests', { param: 'upload_id' });
    }
    if (typeof uploadId !== 'string') throw invalid('upload_id', 'must be a string');
    return { uploadId };
  }
  const native = members.has('shape') || members.has('requests');
  if (foreign && native) {
    throw new ApiError('invalid_value', `${foreign} cannot stand beside shape and requests`, { param: foreign });
  }
  if (foreign && body.length > maxOpenaiBytes) {
    const message = `request body too large: ${body.length} bytes sent, the limit is ${maxOpenaiBytes} bytes`;
    throw new ApiError('body_too_large', message);
  }
  if (foreign) {
    throw new ApiError('invalid_value', `${foreign} is not supported here: send shape and requests`, {
      param: foreign,
    });
  }

  if (members.size === 0) {
    const forms =
      'a native batch has shape and requests, an OpenAI batch has input_file_id, endpoint and completion_window';
    throw new ApiError('missing_required_parameter', `shape is required: ${forms}`, { param: 'shape' });
  }
  return submissionOf(option, requests, maxItems);
}

/**
 * Checks an upload that is used by a submit: it holds what a submit's own body would. Options of the submit win over
 * those of the upload. Throws as `parseSubmission` does.
 */
export async function parseUploaded(uploaded: Buffer, body: Buffer, maxItems: number): Promise<Submission> {
  const inner = await read(uploaded, maxItems);
  const outer = await read(body, maxItems);
  const foreign = ['input_file_id', 'endpoint', 'upload_id'].find((name) => inner.members.has(name));
  if (foreign) throw new ApiError('invalid_value', `${foreign} cannot stand in an upload`, { param: foreign });
  return submissionOf((name) => outer.option(name) ?? inner.option(name), inner.requests, maxItems);
}

/** The value of a member; undefined when it is absent or null. */
type Option = (name: string) => unknown;

async function read(body: Buffer, maxItems: number) {
  const slice = await sliceInTurns(body, maxItems);
  if (!slice.ok) throw new ApiError(slice.code, slice.message);
  const { members, requests } = slice;
  const option: Option = (name) => {
    const span = members.get(name);
    if (span === undefined) return undefined;
    if (span.end - span.start > MAX_OPTION_BYTES)
      throw new ApiError('invalid_value', `${name} is too long`, { param: name });
    return JSON.parse(body.toString('utf8', span.start, span.end)) ?? undefined;
  };
  return { members, requests, option };
}

function submissionOf(option: Option, requests: SlicedItems | 'not_array' | null, maxItems: number): Submission {
  return {
    shape: shapeOf(option('shape')),
    items: itemsOf(requests, maxItems),
    maxAttempts: maxAttemptsOf(option('max_attempts')),
    onLimit: onLimitOf(option('on_limit')),
    completionWindowSeconds: windowOf(option('completion_window')),
  };
}

function shapeOf(value: unknown): Shape {
  if (value === undefined) throw new ApiError('missing_required_parameter', 'shape is required', { param: 'shape' });
  const shape = SHAPES.find((known) => known === value);
  if (shape === undefined) throw invalid('shape', `must be one of ${SHAPES.join(', ')}`);
  return shape;
}

function itemsOf(requests: SlicedItems | 'not_array' | null, maxItems: number): SlicedItems {
  if (requests === null) {
    throw new ApiError('missing_required_parameter', 'requests is required', { param: 'requests' });
  }
  if (requests === 'not_array') throw invalid('requests', `must be an array of 1 to ${maxItems} items`);
  if (requests.sent === 0) throw invalid('requests', `must hold 1 to ${maxItems} items, 0 were sent`);
  if (requests.sent > maxItems) {
    const message = `too many items: ${requests.sent} sent, the limit is ${maxItems}`;
    throw new ApiError('too_many_items', message, { param: 'requests' });
  }
  return requests;
}

function maxAttemptsOf(value: unknown): number {
  if (value === undefined) return 1;
  if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 10) return value;
  throw invalid('max_attempts', 'must be a whole number from 1 to 10');
}

function onLimitOf(value: unknown): 'fail' | 'wait' {
  if (value === undefined) return 'fail';
  if (value === 'fail' || value === 'wait') return value;
  throw invalid('on_limit', 'must be fail or wait');
}

function windowOf(value: unknown): number | null {
  if (value === undefined) return null;
  const match = typeof value === 'string' ? /^(\d{1,6})([smhd])$/.exec(value) : null;
  const seconds = match ? Number(match[1]) * UNIT_SECONDS[match[2]!]! : 0;
  if (seconds >= MIN_WINDOW_SECONDS && seconds <= MAX_WINDOW_SECONDS) return seconds;
  throw invalid('completion_window', 'must be a duration from 30m to 7d, for example 24h');
}

function invalid(param: string, rule: string): ApiError {
  return new ApiError('invalid_value', `${param} ${rule}`, { param });
}
