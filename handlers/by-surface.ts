import { isUtf8 } from 'node:buffer';
import { type ApiEvent, bodyOf, queryOf } from '../lib/http/event.ts';
import type { HttpRoute } from '../lib/http/routes.ts';
import { findMembers } from '../lib/json/members.ts';
import { bomLength } from '../lib/json/scan.ts';
import { MAX_CREATE_BYTES } from '../lib/surfaces/openai/create-request.ts';
import { type Endpoint, either } from './endpoint.ts';
import {
  cancelBatchEndpoint,
  getBatchEndpoint,
  listBatchesEndpoint,
  NATIVE_ENDPOINTS,
  type NativeApp,
  submitBatchEndpoint,
} from './native.ts';
import {
  cancelOpenaiBatchEndpoint,
  createOpenaiBatchEndpoint,
  getOpenaiBatchEndpoint,
  listOpenaiBatchesEndpoint,
  type OpenaiApp,
} from './openai.ts';

// Paths that the native API and OpenAI's share ("Which surface a call belongs to" in docs/spec/native-api.md). The
// caller is known before a body is looked at.

/**
 * A create of the OpenAI API has at most 111 KB of meaning: 16 pairs of 64 and 512 characters, each as two escapes of six
 * bytes. To parse larger bodies would slow down native submits: they are parsed only if one of its members' names occurs
 * anywhere in them.
 */
const LOOK_BYTES = 131_072;
const OPENAI_MEMBERS = ['input_file_id', 'endpoint'];

/**
 * Four endpoints for two surfaces each. The native one names the route and the function on Lambda.
 *
 * @internal Exported for its tests.
 */
export const SHARED_BATCH_ENDPOINTS: readonly Endpoint<NativeApp & OpenaiApp>[] = [
  // `input_file_id` or `endpoint` make it OpenAI's; beside `shape` or `requests` they are refused.
  either(submitBatchEndpoint, createOpenaiBatchEndpoint, (event) => isOpenaiCreate(bodyOf(event))),
  // The native list has `surface` in its query.
  either(listBatchesEndpoint, listOpenaiBatchesEndpoint, (event) => !queryOf(event).has('surface')),
  either(getBatchEndpoint, getOpenaiBatchEndpoint, hasOpenaiId),
  either(cancelBatchEndpoint, cancelOpenaiBatchEndpoint, hasOpenaiId),
];

/** The native endpoints, those that are shared in their place. */
export const BATCH_ENDPOINTS: readonly Endpoint<NativeApp & OpenaiApp>[] = NATIVE_ENDPOINTS.map(
  (native) => SHARED_BATCH_ENDPOINTS.find((shared) => isSameRoute(shared, native)) ?? native,
);

function isSameRoute(one: HttpRoute, other: HttpRoute): boolean {
  return one.method === other.method && one.pattern === other.pattern;
}

function hasOpenaiId(event: ApiEvent): boolean {
  return event.pathParameters?.id?.startsWith('batch_') === true;
}

function isOpenaiCreate(body: Buffer): boolean {
  if (!mayBeOpenai(body) || !isUtf8(body)) return false;
  const found = findMembers(body, [...OPENAI_MEMBERS, 'shape', 'requests', 'upload_id'], bomLength(body));
  if (found.kind !== 'object') return false;
  const has = (name: string) => found.members.has(name);
  return OPENAI_MEMBERS.some(has) && !has('shape') && !has('requests') && !has('upload_id');
}

function mayBeOpenai(body: Buffer): boolean {
  if (body.length <= LOOK_BYTES) return true;
  return body.length <= MAX_CREATE_BYTES && OPENAI_MEMBERS.some((name) => body.includes(`"${name}"`));
}
