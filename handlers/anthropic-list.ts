import { ApiError } from '../lib/base/errors.ts';
import { MESSAGE_LIST_QUERY, parseQuery } from '../lib/http/contracts.ts';
import { type ApiHandler, queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { listMessageBatches } from '../lib/surfaces/anthropic/list.ts';
import { messageBatch } from '../lib/surfaces/anthropic/message-batch.ts';
import { type AnthropicApp, resultsOrigin } from './anthropic-app.ts';
import { type Authenticated, authenticated } from './middleware.ts';

/** `GET /v1/messages/batches` */
export function listMessageBatchesHandler(app: AnthropicApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { limit, after_id: after, before_id: before } = parseQuery(MESSAGE_LIST_QUERY, queryOf(event));
    if (after !== undefined && before !== undefined) {
      throw new ApiError('invalid_value', 'before_id cannot stand beside after_id', { param: 'before_id' });
    }
    const page = { owner, after: after ?? null, before: before ?? null, limit };
    const { rows, hasMore } = await listMessageBatches(app, page);
    const data = rows.map((row) => messageBatch(row, () => resultsOrigin(app, event)));
    return json(200, { data, has_more: hasMore, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null });
  };
  return authenticated(app, handle);
}
