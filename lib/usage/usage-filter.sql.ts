/**
 * Which usage events a query is about. Null is not a filter; a list means any of its values, an empty one matches
 * nothing.
 */
export interface UsageFilter {
  /** `ts` in [from, to). */
  from: Date;
  to: Date;
  /** Only batches of this owner: the caller's own view. */
  owner: string | null;
  status: number[] | null;
  /** Hundreds of the status: 2 is 200-299. */
  status_class: number[] | null;
  status_min: number | null;
  status_max: number | null;
  /** True: events with an error kind; false: those without. */
  error: boolean[] | null;
  batch_idx: number[] | null;
  duration_ms: number[] | null;
  attempts: number[] | null;
  cost_nanos: string[] | null;
  ts: Date[] | null;
  finish_reason: string[] | null;
  error_kind: string[] | null;
  error_message: string[] | null;
  instance: string[] | null;
  /** Lower-case UUIDs. */
  batch_id: string[] | null;
  request_id: { batch_id: string; batch_idx: number }[] | null;
  requested_model: string[] | null;
  model: string[] | null;
  provider: string[] | null;
  host: string[] | null;
  host_key: string[] | null;
  adapter: string[] | null;
  pricing: string[] | null;
  resolved_via: string[] | null;
  policy: string[] | null;
  project: string[] | null;
  team: string[] | null;
  principal_kind: string[] | null;
  principal_id: string[] | null;
  credential_kind: string[] | null;
  credential_id: string[] | null;
  relay_key_hash: string[] | null;
}

/**
 * Condition on `usage_events e`, parameters $1 to $37; those of a statement's own follow from $38. It is planned
 * anew for each call: unused filters fold away, and partitions of batches that came after `to` are not opened. A batch
 * cannot be younger than its events; the day is for the clocks of the replicas that made the ids.
 */
export const MATCHES = `
  e.ts >= $1::timestamptz and e.ts < $2::timestamptz
  and e.batch_id < $37::uuid
  and ($4::int[] is null or e.status = any($4::int[]))
  and ($5::int[] is null or e.status / 100 = any($5::int[]))
  and ($6::int is null or e.status >= $6::int)
  and ($7::int is null or e.status <= $7::int)
  and ($8::bool[] is null or (e.error_kind is not null) = any($8::bool[]))
  and ($9::int[] is null or e.batch_idx = any($9::int[]))
  and ($10::int[] is null or e.duration_ms = any($10::int[]))
  and ($11::int[] is null or e.attempts = any($11::int[]))
  and ($12::bigint[] is null or e.cost_nanos = any($12::bigint[]))
  and ($13::timestamptz[] is null or e.ts = any($13::timestamptz[]))
  and ($14::text[] is null or e.finish_reason = any($14::text[]))
  and ($15::text[] is null or e.error_kind = any($15::text[]))
  and ($16::text[] is null or e.error_message = any($16::text[]))
  and ($17::text[] is null or e.instance = any($17::text[]))
  and ($18::uuid[] is null or e.batch_id = any($18::uuid[]))
  and ($19::uuid[] is null or (e.batch_id = any($19::uuid[])
    and (e.batch_id, e.batch_idx) in (select * from unnest($19::uuid[], $20::int[]))))
  and (coalesce($21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::text[], $28::text[]) is null
    or e.route in (
      select r.id from usage_routes r
      where ($21::text[] is null or r.requested_model = any($21::text[]))
        and ($22::text[] is null or r.model = any($22::text[]))
        and ($23::text[] is null or r.provider = any($23::text[]))
        and ($24::text[] is null or r.host = any($24::text[]))
        and ($25::text[] is null or r.host_key = any($25::text[]))
        and ($26::text[] is null or r.adapter = any($26::text[]))
        and ($27::text[] is null or r.pricing = any($27::text[]))
        and ($28::text[] is null or r.resolved_via = any($28::text[]))))
  and (coalesce($3::text[], $29::text[], $30::text[], $31::text[], $32::text[], $33::text[], $34::text[], $35::text[],
      $36::text[]) is null
    or e.batch_id in (
      select a.batch_id from usage_attributions a
      where ($3::text[] is null or a.owner = any($3::text[]))
        and ($29::text[] is null or a.policy = any($29::text[]))
        and ($30::text[] is null or a.project = any($30::text[]))
        and ($31::text[] is null or a.team = any($31::text[]))
        and ($32::text[] is null or a.principal_kind = any($32::text[]))
        and ($33::text[] is null or a.principal_id = any($33::text[]))
        and ($34::text[] is null or a.credential_kind = any($34::text[]))
        and ($35::text[] is null or a.credential_id = any($35::text[]))
        and ($36::text[] is null or a.owner = any($36::text[]))))`;

/** Values of $1 to $37. */
export function filterValues(f: UsageFilter): unknown[] {
  return [
    f.from,
    f.to,
    f.owner === null ? null : [f.owner],
    f.status,
    f.status_class,
    f.status_min,
    f.status_max,
    f.error,
    f.batch_idx,
    f.duration_ms,
    f.attempts,
    f.cost_nanos,
    f.ts,
    f.finish_reason,
    f.error_kind,
    f.error_message,
    f.instance,
    f.batch_id,
    f.request_id?.map((id) => id.batch_id) ?? null,
    f.request_id?.map((id) => id.batch_idx) ?? null,
    f.requested_model,
    f.model,
    f.provider,
    f.host,
    f.host_key,
    f.adapter,
    f.pricing,
    f.resolved_via,
    f.policy,
    f.project,
    f.team,
    f.principal_kind,
    f.principal_id,
    f.credential_kind,
    f.credential_id,
    f.relay_key_hash,
    youngestBatch(f.to),
  ];
}

const DAY_MS = 86_400_000;

/** Smaller than the id of any batch that was made more than a day after `to`. */
export function youngestBatch(to: Date): string {
  const hex = Math.min(to.getTime() + DAY_MS, 0xffff_ffff_ffff)
    .toString(16)
    .padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-0000-0000-000000000000`;
}
