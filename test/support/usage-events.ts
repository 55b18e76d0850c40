import type { Db } from '../../lib/db/database.ts';
import { TOKEN_PARTS, type TokenCounts } from '../../lib/model/usage-event.ts';
import { routeId } from '../../lib/worker/commit.sql.ts';
import { NO_ROUTE } from '../../lib/worker/item/outcome.ts';

/** An event as a test inserts it; what is not given is absent, or that of an answered item. */
export interface EventFixture {
  batchId: string;
  idx: number;
  ts: Date;
  status?: number;
  attempts?: number;
  durationMs?: number;
  startedAt?: Date | null;
  errorKind?: string;
  errorMessage?: string;
  finishReason?: string;
  instance?: string;
  route?: Partial<typeof NO_ROUTE>;
  tokens?: TokenCounts;
  costNanos?: bigint;
}

/** Inserts events and their routes as the group commit leaves them. */
export async function insertEvents(db: Db, events: readonly EventFixture[]): Promise<void> {
  for (const event of events) {
    const route = event.route ? { ...NO_ROUTE, ...event.route } : null;
    if (route) {
      await db.query({
        name: '',
        text: `insert into usage_routes values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing`,
        values: [routeId(route), ...Object.values(route)],
      });
    }
    await db.query({
      name: '',
      text: `insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, started_at, response_start_ms,
          response_end_ms, error_kind, error_message, finish_reason, instance, route, cost_nanos, cost_breakdown,
          ${TOKEN_PARTS.map((part) => `tokens_${part}`).join(', ')})
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
          ${TOKEN_PARTS.map((_, i) => `$${17 + i}`).join(', ')})`,
      values: [
        event.batchId,
        event.idx,
        event.ts,
        event.status ?? 200,
        event.attempts ?? 1,
        event.durationMs ?? 100,
        event.startedAt === undefined ? event.ts : event.startedAt,
        event.startedAt === null ? null : 10,
        event.startedAt === null ? null : 90,
        event.errorKind ?? null,
        event.errorMessage ?? null,
        event.finishReason ?? null,
        event.instance ?? null,
        route && routeId(route),
        event.costNanos ?? null,
        event.costNanos === undefined ? null : { input: Number(event.costNanos) },
        ...TOKEN_PARTS.map((part) => event.tokens?.[part] ?? null),
      ],
    });
  }
}

/** Who submitted a batch, as far as events repeat it. */
export interface AttributionFixture {
  owner: string;
  policy?: string;
  project?: string;
  team?: string;
  principalKind?: string;
  principalId?: string;
  credentialKind?: string;
  credentialId?: string;
}

/** Inserts the attribution of a batch without the batch. */
export async function insertOwner(db: Db, batchId: string, a: AttributionFixture): Promise<void> {
  await db.query({
    name: '',
    text: `insert into usage_attributions (batch_id, surface, owner, policy, project, team, principal_kind, principal_id,
        credential_kind, credential_id, created_at)
      values ($1, 'relay', $2, $3, $4, $5, $6, $7, $8, $9, now())`,
    values: [
      batchId,
      a.owner,
      a.policy ?? null,
      a.project ?? null,
      a.team ?? null,
      a.principalKind ?? null,
      a.principalId ?? null,
      a.credentialKind ?? 'key',
      a.credentialId ?? 'k',
    ],
  });
}
