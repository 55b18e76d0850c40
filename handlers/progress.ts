import { isUuid } from '../lib/base/clock.ts';
import { ApiError } from '../lib/base/errors.ts';
import { getProgress, type Progress, type ProgressDeps, type ProgressKey } from '../lib/batch/progress.ts';
import { pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { messageBatchId, parseMessageBatchId } from '../lib/surfaces/anthropic/message-batch.ts';
import { parseBatchId, publicBatchId } from '../lib/surfaces/openai/find-batch.ts';
import { type AdminDeps, adminEndpoint } from './admin.ts';
import { endpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

/** Serves the batches of all surfaces, by the ids that each of them shows. */
export const getProgressEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/batches/{id}/progress', lambda: 'get' },
  async (app: GateDeps & ProgressDeps, { owner }, event) => {
    const key = keyOf(pathParameter(event, 'id'), owner);
    return { ...json(200, await requireProgress(app, key)), batchId: key.id };
  },
);

/** The same for the administrator: anybody's batch, with the names of host keys. */
export const getAnyProgressEndpoint = adminEndpoint(
  { method: 'GET', pattern: '/api/batches/{id}/progress' },
  async (app: AdminDeps & ProgressDeps, event) =>
    json(200, await requireProgress(app, keyOf(pathParameter(event, 'id'), null))),
);

async function requireProgress(app: ProgressDeps, key: ProgressKey): Promise<Progress> {
  const progress = await getProgress(app, key, (surface) => publicIdOf(surface, key.id));
  if (progress === null) throw new ApiError('not_found');
  return progress;
}

/** The batch that an id names. One of another form is as unknown as that of no batch. */
function keyOf(id: string, owner: string | null): ProgressKey {
  if (isUuid(id)) return { id, owner, surface: null };
  const openai = parseBatchId(id);
  if (openai !== null) return { id: openai, owner, surface: 'openai' };
  const message = parseMessageBatchId(id);
  if (message !== null) return { id: message, owner, surface: 'anthropic' };
  throw new ApiError('not_found');
}

function publicIdOf(surface: string, id: string): string {
  if (surface === 'openai') return publicBatchId(id);
  return surface === 'anthropic' ? messageBatchId(id) : id;
}
