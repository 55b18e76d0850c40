import { cutText } from '../../base/errors.ts';
import type { HostKey } from '../../model/catalog.ts';
import type { RouteFacts } from '../../model/usage-event.ts';
import type { Candidate, RoutePlan } from '../../routing/plan.ts';

// The same object for the same way: the group commit keeps route ids by identity.
const memo = new WeakMap<Candidate, Map<string, RouteFacts>>();

/** The route of an item as its usage event records it. Memoised by candidate and key. */
export function routeFacts(plan: RoutePlan, candidate: Candidate, key: HostKey): RouteFacts {
  let byKey = memo.get(candidate);
  if (!byKey) {
    byKey = new Map();
    memo.set(candidate, byKey);
  }
  let facts = byKey.get(key.name);
  if (!facts) {
    facts = {
      requestedModel: cutText(plan.requestedModel),
      model: plan.model.name,
      provider: plan.model.provider,
      host: candidate.host.name,
      hostKey: key.name === '' ? null : key.name,
      adapter: candidate.adapter,
      pricing: candidate.binding.pricing ?? null,
      resolvedVia: plan.resolvedVia,
    };
    byKey.set(key.name, facts);
  }
  return facts;
}
