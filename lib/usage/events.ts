import { z } from 'zod';
import { isUuid } from '../base/clock.ts';
import type { Database } from '../db/database.ts';
import { TOKEN_PARTS } from '../model/usage-event.ts';
import { isInRange } from './moment.ts';
import { badValue, once, parseFilter, parseParameters, requestId, type UsageQuery, whole } from './query.ts';
import { jsonInteger } from './sums.ts';
import { beginReport, type EventPosition, type EventRow, listEvents } from './usage.sql.ts';

const DEFAULT_LIMIT = 100;
const MAX_LIMIT = 10_000;
/** Idx values fit a Postgres integer. */
const MAX_IDX = 2_147_483_647;
const PAGE = z.object({ limit: once(whole(1, MAX_LIMIT)), cursor: once(z.string()) });

/** One usage event as the API shows it: absent values are null, except cost and breakdown, which are left out. */
export type EventDocument = ReturnType<typeof documentOf>;

/**
 * A page of events, newest first by (`ts`, `request_id`). A cursor is the last event of its page, and the start of the
 * period with it. Later pages neither repeat nor miss an event that was there at the first, whatever is written
 * meanwhile. Throws ApiError 400.
 */
export async function usageEvents(
  db: Database,
  asked: UsageQuery,
): Promise<{ events: EventDocument[]; next_cursor: string | null }> {
  const page = parseParameters(PAGE, asked.query);
  const limit = page.limit ?? DEFAULT_LIMIT;
  const cursor = page.cursor === null ? null : parseCursor(page.cursor);
  return db.transaction(async (tx) => {
    const filter = parseFilter(asked, await beginReport(tx), Object.keys(PAGE.shape));
    if (cursor) filter.from = cursor.from;
    const rows = await listEvents(tx, filter, cursor, limit + 1);
    const shown = rows.slice(0, limit);
    const more = rows.length > limit;
    return { events: shown.map(documentOf), next_cursor: more ? cursorOf(filter.from, shown.at(-1)!) : null };
  });
}

interface Cursor extends EventPosition {
  from: Date;
}

function cursorOf(from: Date, last: EventPosition): string {
  const text = [from.getTime(), last.ts.getTime(), last.batch_id, last.batch_idx].join(' ');
  return Buffer.from(text).toString('base64url');
}

/** Reads a cursor. What no page can have answered with is refused: Postgres knows neither all dates nor all of its forms. */
function parseCursor(text: string): Cursor {
  const parts = Buffer.from(text, 'base64url').toString('latin1').split(' ');
  const [from, ts, idx] = [parts[0], parts[1], parts[3]].map((part) =>
    /^\d{1,15}$/.test(part ?? '') ? Number(part) : NaN,
  );
  const last = { ts: new Date(ts!), batch_id: parts[2] ?? '', batch_idx: idx! };
  const isPlace = isUuid(last.batch_id) && idx! <= MAX_IDX;
  if (!isPlace || !isInRange(from!) || !isInRange(ts!) || from! > ts! || cursorOf(new Date(from!), last) !== text) {
    throw badValue('cursor', 'must be a next_cursor of this call');
  }
  return { ...last, from: new Date(from!) };
}

function documentOf(row: EventRow) {
  const after = (ms: number | null) =>
    row.started_at === null || ms === null ? null : new Date(row.started_at.getTime() + ms).toISOString();
  const tokens: Record<string, number> = {};
  for (const part of TOKEN_PARTS) {
    const count = row[`tokens_${part}`];
    if (count !== null) tokens[part] = count;
  }
  return {
    request_id: requestId(row.batch_id, row.batch_idx),
    batch_id: row.batch_id,
    batch_idx: row.batch_idx,
    source: 'batch',
    ts: row.ts.toISOString(),
    status: row.status,
    duration_ms: row.duration_ms,
    timing: {
      start: row.started_at?.toISOString() ?? null,
      response_start: after(row.response_start_ms),
      response_end: after(row.response_end_ms),
    },
    attempts: row.attempts,
    finish_reason: row.finish_reason,
    error_kind: row.error_kind,
    error_message: row.error_message,
    requested_model: row.requested_model,
    model: row.model,
    provider: row.provider,
    host: row.host,
    host_key: row.host_key,
    policy: row.policy,
    project: row.project,
    team: row.team,
    principal_kind: row.principal_kind,
    principal_id: row.principal_id,
    credential_kind: row.credential_kind,
    credential_id: row.credential_id,
    relay_key_hash: row.owner,
    adapter: row.adapter,
    tokens,
    ...(row.cost_nanos === null ? {} : { cost_nanos: jsonInteger(row.cost_nanos) }),
    ...(row.cost_breakdown === null ? {} : { cost_breakdown: row.cost_breakdown }),
    pricing: row.pricing,
    resolved_via: row.resolved_via,
    instance: row.instance,
  };
}
