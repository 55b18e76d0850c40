import type { Catalog, Model } from '../model/catalog.ts';
import { cutSlug, wholeSlug, wildcardSlugs } from '../model/slug.ts';

/** The way in which a requested name found its model; usage events record it as `resolved_via`. */
export type ResolvedVia = 'name' | 'snapshot' | 'alias' | 'wildcard';

/** The model that a name means, and how the name found it. */
export interface Resolved {
  model: Model;
  via: ResolvedVia;
  /** The name of the host that the request pins with `@`; null without a pin. */
  pinned: string | null;
  /** The model name that is sent upstream if the binding has no `upstreamName`. */
  wireName: string;
}

/** An exact form of a name. `text` is the declared snapshot, alias or model name behind it. */
interface Target {
  model: Model;
  via: 'name' | 'snapshot' | 'alias';
  text: string;
  /** The whole slugs of `text` and of `provider/text`. */
  bare: string;
  full: string;
  wireName: string;
  pinned: string | null;
}

interface Wildcard {
  prefix: string;
  suffix: string;
  model: Model;
}

/** Every name of a catalogue by slug. */
export interface Names {
  exact: ReadonlyMap<string, Target>;
  /** Keyed by literal prefix; sorted by suffix, then model name. */
  wildcards: ReadonlyMap<string, readonly Wildcard[]>;
  /** The lengths of those prefixes, longest first. */
  prefixLengths: readonly number[];
}

/** A longer text is not a name: a slug is linear work, and an item may carry megabytes in `model`. */
export const MAX_NAME_LENGTH = 1024;

/**
 * Builds the name index of a catalogue. It includes disabled models: they are found and then refused. The order of the
 * passes is the precedence of "Model resolution" in docs/spec/gateway-rules.md: a form never replaces one that an
 * earlier pass entered.
 */
export function buildNames(catalog: Catalog): Names {
  const models = [...catalog.models.values()].sort((a, b) => compare(a.name, b.name));
  const names = models.map((model) => targetOf(model, 'name', model.name));
  const snapshots = models.flatMap(snapshotTargets);
  const aliases = models.flatMap(aliasTargets);
  const exact = new Map<string, Target>();
  const hosts = new Map([...catalog.hosts.keys()].map((host) => [host, wholeSlug(host)]));
  for (const group of [[...names, ...snapshots], aliases]) {
    for (const target of group) enter(exact, target, target.bare);
    for (const target of group) enter(exact, target, target.full);
    for (const form of ['bare', 'full'] as const) {
      for (const target of group) {
        for (const { enabled, host } of catalog.bindings.get(target.model.name) ?? []) {
          if (enabled) enter(exact, { ...target, pinned: host }, join(target[form], hosts.get(host) ?? ''));
        }
      }
    }
  }
  const wildcards = buildWildcards(models);
  const prefixLengths = [...new Set([...wildcards.keys()].map((prefix) => prefix.length))].sort((a, b) => b - a);
  return { exact, wildcards, prefixLengths };
}

/** Resolves a requested name; null if nothing matches it. */
export function resolveName(names: Names, requested: string): Resolved | null {
  if (requested.length > MAX_NAME_LENGTH) return null;
  const whole = wholeSlug(requested);
  if (whole === '') return null;
  const target = names.exact.get(whole) ?? names.exact.get(cutSlug(whole));
  if (target) {
    const wireName = target.via === 'alias' ? callersSpelling(requested, target) : target.wireName;
    return { model: target.model, via: target.via, pinned: target.pinned, wireName };
  }
  // The slug includes the pin, so a wildcard would treat the host as a part of the name.
  if (requested.includes('@')) return null;
  for (const length of names.prefixLengths) {
    if (length > whole.length) continue;
    for (const { suffix, model } of names.wildcards.get(whole.slice(0, length)) ?? []) {
      if (whole.length >= length + suffix.length && whole.endsWith(suffix)) {
        return { model, via: 'wildcard', pinned: null, wireName: requested };
      }
    }
  }
  return null;
}

/** A longer form also stands under its whole slug: forms that share their first 63 characters stay apart. */
function enter(exact: Map<string, Target>, target: Target, whole: string): void {
  if (whole === '') return;
  if (!exact.has(whole)) exact.set(whole, target);
  const cut = cutSlug(whole);
  if (cut !== whole && !exact.has(cut)) exact.set(cut, target);
}

function targetOf(model: Model, via: Target['via'], text: string, wireName = text): Target {
  const bare = wholeSlug(text);
  return { model, via, text, bare, full: join(wholeSlug(model.provider), bare), wireName, pinned: null };
}

function snapshotTargets(model: Model): Target[] {
  return model.snapshots.map(({ name, upstreamName }) => targetOf(model, 'snapshot', name, upstreamName));
}

function aliasTargets(model: Model): Target[] {
  return model.aliases.filter((alias) => !alias.includes('*')).map((alias) => targetOf(model, 'alias', alias));
}

function join(left: string, right: string): string {
  return left === '' || right === '' ? '' : `${left}-${right}`;
}

function buildWildcards(models: readonly Model[]): Map<string, Wildcard[]> {
  const wildcards = new Map<string, Wildcard[]>();
  for (const model of models) {
    for (const alias of model.aliases) {
      const [before, after, ...more] = alias.split('*');
      if (!before || after === undefined || more.length > 0) continue; // apply refuses these
      const { prefix, suffix } = wildcardSlugs(before, after);
      if (prefix === '') continue;
      wildcards.set(prefix, [...(wildcards.get(prefix) ?? []), { prefix, suffix, model }]);
    }
  }
  for (const list of wildcards.values()) {
    list.sort((a, b) => compare(a.suffix, b.suffix) || compare(a.model.name, b.model.name));
  }
  return wildcards;
}

/**
 * Returns the alias as the caller wrote it, without the `provider/` and `@host` around it. If the name does not show
 * where these end (`openai-nick-local`), it returns the declared spelling.
 */
function callersSpelling(requested: string, target: Target): string {
  const at = target.pinned === null ? -1 : requested.lastIndexOf('@');
  const unpinned = at === -1 ? requested : requested.slice(0, at);
  if (wholeSlug(unpinned) === target.bare) return unpinned;
  const bare = unpinned.slice(unpinned.indexOf('/') + 1);
  return wholeSlug(bare) === target.bare ? bare : target.text;
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
