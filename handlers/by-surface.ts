import { isUtf8 } from 'node:buffer';
import { type ApiEvent, type ApiHandler, bodyOf, queryOf } from '../lib/http/event.ts';
import { findMembers } from '../lib/json/members.ts';
import { bomLength } from '../lib/json/scan.ts';
import { MAX_CREATE_BYTES } from '../lib/surfaces/openai/create-request.ts';
import { cancel } from './cancel.ts';
import { get } from './get.ts';
import { list } from './list.ts';
import type { NativeApp } from './native.ts';
import type { OpenaiApp } from './openai.ts';
import { cancelOpenaiBatchHandler } from './openai-cancel.ts';
import { createOpenaiBatchHandler } from './openai-create.ts';
import { getOpenaiBatchHandler } from './openai-get.ts';
import { listOpenaiBatchesHandler } from './openai-list.ts';
import { submit } from './submit.ts';

// Paths that the native API and OpenAI's share ("Which surface a call belongs to" in docs/spec/native-api.md). Each
// handler authenticates for itself.

type BatchesApp = NativeApp & OpenaiApp;

/**
 * A create of the OpenAI API has 111 KB at most that say something: 16 pairs of 64 and 512 characters, each as two escapes of
 * six bytes. Looking into more than this would cost native submits, so that of larger ones only those are looked into
 * that name one of its members, wherever that stands.
 */
const LOOK_BYTES = 131_072;
const OPENAI_MEMBERS = ['input_file_id', 'endpoint'];

/** `POST /v1/batches`: `input_file_id` or `endpoint` make it OpenAI's; beside `shape` or `requests` they are refused. */
export function createBatch(app: BatchesApp): ApiHandler {
  return either(submit(app), createOpenaiBatchHandler(app), (event) => isOpenaiCreate(bodyOf(event)));
}

/** `GET /v1/batches`: the native list is asked for with `surface`. */
export function listBatches(app: BatchesApp): ApiHandler {
  return either(list(app), listOpenaiBatchesHandler(app), (event) => !queryOf(event).has('surface'));
}

/** `GET /v1/batches/{id}` */
export function getBatch(app: BatchesApp): ApiHandler {
  return either(get(app), getOpenaiBatchHandler(app), hasOpenaiId);
}

/** `POST /v1/batches/{id}/cancel` */
export function cancelBatch(app: BatchesApp): ApiHandler {
  return either(cancel(app), cancelOpenaiBatchHandler(app), hasOpenaiId);
}

function either(native: ApiHandler, openai: ApiHandler, isOpenai: (event: ApiEvent) => boolean): ApiHandler {
  return (event, context) => (isOpenai(event) ? openai : native)(event, context);
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
