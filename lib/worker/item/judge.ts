import { policyOf, type Recheck, recheckCredential } from '../../auth/recheck.ts';
import { cutText } from '../../base/errors.ts';
import { inTurns, STEP_BYTES } from '../../base/turns.ts';
import { MAX_MEMBERS } from '../../json/members.ts';
import type { Turn } from '../../keypool/draw.ts';
import type { Refund } from '../../limits/settle.ts';
import type { BatchContext, ClaimedItem } from '../../model/batch.ts';
import type { Catalog, HostKey } from '../../model/catalog.ts';
import type { RouteFacts } from '../../model/usage-event.ts';
import { planRoute, type RouteFailure, type RoutePlan, routeFailureText, routesOf } from '../../routing/plan.ts';
import { type ItemPeek, peekItem, peekItemInSteps } from '../../upstream/item-body.ts';
import { NO_ROUTE, type Outcome, refused } from './outcome.ts';

/** An item that may run: where it may go, and what of its bytes must be replaced. */
export interface Judged {
  item: ClaimedItem;
  body: Buffer;
  catalog: Catalog;
  plan: RoutePlan;
  /** The item's own `model` value, and where its values stand. */
  model: string;
  modelSpans: readonly (readonly [number, number])[];
  /** The vectors that an answer of embeddings must have. */
  inputs: number;
  /** Shared time (epoch ms) at which the credential must be looked at again. */
  validUntilMs: number;
}

export type ItemVerdict = { judged: Judged } | { outcome: Outcome };

/**
 * Judges an item as it is about to run: credential, body, policy, route ("Credential check when an item runs" in
 * docs/spec/gateway-rules.md and "Routing errors" in docs/spec/gateway-rules.md and "Item failure texts" in
 * docs/spec/gateway-rules.md). Bad items become outcomes with their text; the other items of the batch are left alone. A
 * large body is read in turns of the event loop.
 */
export type Judge = (item: ClaimedItem, body: Buffer) => ItemVerdict | Promise<ItemVerdict>;

/** A judge over the catalogue in memory; `nowMs` is shared time. Re-checks are kept per batch and catalogue. */
export function createJudge(deps: { catalog(): Catalog; nowMs(): number }): Judge {
  let checkedUnder: Catalog | null = null;
  let checks = new WeakMap<BatchContext, Recheck>();

  const recheck = (batch: BatchContext, catalog: Catalog): Recheck => {
    if (checkedUnder !== catalog) {
      checkedUnder = catalog;
      checks = new WeakMap();
    }
    const known = checks.get(batch);
    const now = deps.nowMs();
    if (known && (!known.ok || now < known.validUntilMs)) return known;
    const fresh = recheckCredential(batch, catalog, now);
    checks.set(batch, fresh);
    return fresh;
  };

  const judge = (item: ClaimedItem, body: Buffer, read: ItemPeek | null): ItemVerdict => {
    const catalog = deps.catalog();
    const credential = recheck(item.batch, catalog);
    if (!credential.ok) {
      return { outcome: refused(item, 'credential', `credential no longer valid: ${credential.reason}`) };
    }
    const peek = read ?? peekItem(body, asksForVectors(item));
    if (peek.kind === 'too_many_members') return invalid(item, `request body has more than ${MAX_MEMBERS} members`);
    if (peek.kind !== 'object') return invalid(item, 'request body must be a JSON object');
    if (peek.model === null || peek.model === '') return invalid(item, 'model is required');
    if (peek.stream) return invalid(item, 'stream must not be true', peek.model);
    if (peek.background) return invalid(item, 'background must not be true', peek.model);

    const policy = policyOf(item.batch, catalog);
    const route = planRoute(routesOf(catalog), {
      requestedModel: peek.model,
      shape: item.batch.shape,
      policy: typeof policy === 'string' ? catalog.policiesById.get(item.batch.policyId ?? '') : policy,
    });
    if (route.kind === 'failed') {
      return { outcome: refused(item, route.code, routeFailureText(route), failureFacts(route)) };
    }
    const { validUntilMs } = credential;
    const { model, modelSpans, inputs } = peek;
    return { judged: { item, body, catalog, plan: route, model, modelSpans, inputs, validUntilMs } };
  };
  return (item, body) => {
    if (body.length <= STEP_BYTES) return judge(item, body, null);
    return inTurns(peekItemInSteps(body, asksForVectors(item)), body.length).then((peek) => judge(item, body, peek));
  };
}

function asksForVectors({ batch }: ClaimedItem): boolean {
  return batch.shape === 'openai_embeddings';
}

function invalid(item: ClaimedItem, text: string, model?: string): ItemVerdict {
  const route = model === undefined ? NO_ROUTE : { ...NO_ROUTE, requestedModel: cutText(model) };
  return { outcome: refused(item, 'invalid_request', text, route) };
}

function failureFacts(route: RouteFailure): RouteFacts {
  return {
    ...NO_ROUTE,
    requestedModel: cutText(route.requestedModel),
    model: route.model?.name ?? null,
    provider: route.model?.provider ?? null,
    resolvedVia: route.resolvedVia,
  };
}

/** An item that only needs a slot: judged, its turn drawn, its limits reserved. */
export interface PreparedItem extends Judged {
  turn: Turn | null;
  /** The item's reservation; null if it waits for the slot (`concurrency` counts items in slots, not in the queue). */
  reserved: Reservation | null;
}

export interface Reservation extends Refund {
  /** The key whose tier rules are part of it; null when no key can be drawn at present. */
  key: HostKey | null;
}
