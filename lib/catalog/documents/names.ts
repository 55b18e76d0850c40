import { slug, wildcardSlugs } from '../../model/slug.ts';
import type { CatalogDocument, CatalogFault, Where } from './document.ts';
import type { SpecOf } from './kinds.ts';
import type { Referrer } from './references.ts';

type Written = Referrer & Where;
type AtDocument = (document: Written, field: string, message: string) => CatalogFault;

/**
 * Returns a fault for each name that leads to two models: model and snapshot names by slug, aliases by slug, wildcard
 * aliases by their literal parts. The fault is at the later document; between a stored and a new one, at the new one.
 * An alias may equal a model's name: names win ("Model names and slugs" in docs/spec/gateway-rules.md).
 */
export function nameConflicts(
  stored: Iterable<Referrer>,
  documents: readonly Written[],
  fault: AtDocument,
): CatalogFault[] {
  const owners = new Map<string, string>();
  const faults: CatalogFault[] = [];
  const claim = (model: Referrer, document: Written | null) => {
    for (const { key, field, what } of namesOf(model)) {
      const owner = owners.get(key);
      if (owner === undefined) owners.set(key, model.name);
      else if (owner !== model.name && document !== null) {
        faults.push(fault(document, field, `is ${what} that Model "${owner}" has too`));
      }
    }
  };
  for (const object of stored) if (object.kind === 'Model') claim(object, null);
  for (const document of documents) if (document.kind === 'Model') claim(document, document);
  return faults;
}

function namesOf(model: Referrer): { key: string; field: string; what: string }[] {
  const spec = model.spec as SpecOf<'Model'>;
  return [
    { key: `name ${slug(model.name)}`, field: 'metadata.name', what: 'a name' },
    ...(spec.snapshots ?? []).map((snapshot, i) => {
      return { key: `name ${slug(snapshot.name)}`, field: `spec.snapshots[${i}].name`, what: 'a name' };
    }),
    ...(spec.aliases ?? []).map((alias, i) => {
      return { key: aliasKey(alias), field: `spec.aliases[${i}]`, what: 'an alias' };
    }),
  ];
}

function aliasKey(alias: string): string {
  const star = alias.indexOf('*');
  if (star === -1) return `alias ${slug(alias)}`;
  const { prefix, suffix } = wildcardSlugs(alias.slice(0, star), alias.slice(star + 1));
  return `alias ${prefix}*${suffix}`;
}

/**
 * Returns hints about probable slips: grants and replacements that name nothing that exists. They are legal because a
 * grant may be written before its model.
 */
export function hintsOf(
  documents: readonly CatalogDocument[],
  all: Iterable<Referrer>,
  hint: AtDocument,
): CatalogFault[] {
  const known = { models: new Set<string>(), providers: new Set<string>(), hosts: new Set<string>() };
  for (const object of all) {
    if (object.kind === 'Host') known.hosts.add(slug(object.name));
    if (object.kind !== 'Model') continue;
    known.models.add(slug(object.name));
    known.providers.add(slug((object.spec as SpecOf<'Model'>).provider));
  }
  const hints: CatalogFault[] = [];
  const grants = (document: CatalogDocument, field: string, entries: readonly string[] | undefined) => {
    for (const [i, entry] of (entries ?? []).entries()) {
      const [, provider, model, host] = /^([^/@]*)(?:\/([^@]*))?(?:@(.*))?$/.exec(entry) ?? [];
      const missing = [
        provider && !known.providers.has(slug(provider)) ? 'provider' : null,
        model && !known.models.has(slug(model)) ? 'model' : null,
        host && !known.hosts.has(slug(host)) ? 'host' : null,
      ].filter((what) => what !== null);
      if (missing.length > 0)
        hints.push(hint(document, `${field}[${i}]`, `names no ${missing.join(' and no ')} there is`));
    }
  };
  for (const document of documents) {
    if (document.kind === 'Model' && document.spec.deprecation?.replacement !== undefined) {
      const { replacement } = document.spec.deprecation;
      if (!known.models.has(slug(replacement.slice(replacement.indexOf('/') + 1)))) {
        hints.push(hint(document, 'spec.deprecation.replacement', 'names no model there is'));
      }
    }
    if (document.kind !== 'Policy') continue;
    grants(document, 'spec.models', document.spec.models);
    for (const [i, entry] of (document.spec.rateLimits ?? []).entries()) {
      grants(document, `spec.rateLimits[${i}].models`, entry.models);
    }
  }
  return hints;
}
