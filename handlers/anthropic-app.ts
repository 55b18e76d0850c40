import { ApiError } from '../lib/base/errors.ts';
import type { Db } from '../lib/db/database.ts';
import { type ApiEvent, type ApiResult, originOf, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { messageBatch, parseMessageBatchId } from '../lib/surfaces/anthropic/message-batch.ts';
import type { MessageBatchKey, MessageBatchRow } from '../lib/surfaces/anthropic/message-batches.sql.ts';
import type { GateDeps } from './middleware.ts';

/** What every route of message batches needs of the application. */
export interface AnthropicApp extends GateDeps {
  db: Db;
  /** How callers reach the inference port; null: by `listenUrl`. */
  publicUrl: string | null;
  /** What the server listens on; null (every interface, or Lambda) takes the host that the caller asked. */
  listenUrl?(): string | null;
}

/** The batch that `{id}` names; what is no id is as unknown as one that nobody has. */
export function messageBatchKey(event: ApiEvent, owner: string): MessageBatchKey {
  const id = parseMessageBatchId(pathParameter(event, 'id'));
  if (id === null) throw new ApiError('not_found');
  return { id, owner };
}

/** A batch as the answer. */
export function messageBatchAnswer(
  app: Pick<AnthropicApp, 'publicUrl' | 'listenUrl'>,
  event: ApiEvent,
  row: MessageBatchRow,
  headers: Record<string, string> = {},
): ApiResult {
  const batch = messageBatch(row, () => resultsOrigin(app, event));
  return { ...json(200, batch, headers), batchId: row.id };
}

/** Where `results_url` begins. Clients send their key there, so that a Host header decides only where nothing else can. */
export function resultsOrigin(app: Pick<AnthropicApp, 'publicUrl' | 'listenUrl'>, event: ApiEvent): string {
  return originOf(event, app.publicUrl ?? app.listenUrl?.() ?? null);
}
