import type { Host, HostKey } from '../model/catalog.ts';
import {
  anthropicTarget,
  type CallTarget,
  openaiEmbeddingsTarget,
  openaiResponsesTarget,
  openaiTarget,
  type TargetInput,
} from './adapters.ts';
import type { CallRequest } from './call-result.ts';

const TARGETS: Record<CallRequest['adapter'], (input: TargetInput) => CallTarget> = {
  openai: openaiTarget,
  openai_responses: openaiResponsesTarget,
  openai_embeddings: openaiEmbeddingsTarget,
  anthropic: anthropicTarget,
};

/** Callers choose versions, so the memo must not grow with them. */
const MAX_MEMO = 64;

/** Hosts and keys are replaced, never changed, when the catalogue is; weak references let the old ones go. */
const memo = new WeakMap<Host, WeakMap<object, Map<string, CallTarget>>>();
const ANONYMOUS = {};

/**
 * URL and headers of a call. Memoised by host, key and (anthropic only) versions, because every item asks for it
 * and building it takes 2 us. The client in turn caches by the headers object, which is frozen for that reason.
 */
export function callTarget(
  adapter: CallRequest['adapter'],
  host: Host,
  key: HostKey | null,
  versions: { anthropicVersion: string | null; anthropicBeta: string | null },
): CallTarget {
  const byName = targetsOf(host, key ?? ANONYMOUS);
  const name =
    adapter === 'anthropic'
      ? `anthropic\n${versions.anthropicVersion ?? ''}\n${versions.anthropicBeta ?? ''}`
      : adapter;
  let target = byName.get(name);
  if (target === undefined) {
    if (byName.size >= MAX_MEMO) byName.clear();
    const { url, headers } = TARGETS[adapter]({ host, key, ...versions });
    target = { url, headers: Object.freeze({ ...headers }) };
    byName.set(name, target);
  }
  return target;
}

function targetsOf(host: Host, key: object): Map<string, CallTarget> {
  let byKey = memo.get(host);
  if (byKey === undefined) {
    byKey = new WeakMap();
    memo.set(host, byKey);
  }
  let targets = byKey.get(key);
  if (targets === undefined) {
    targets = new Map();
    byKey.set(key, targets);
  }
  return targets;
}
