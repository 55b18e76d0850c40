import { uuidv7 } from '../base/clock.ts';
import type { CatalogDocument, CatalogFault, Claim } from './documents/document.ts';
import type { Kind } from './documents/kinds.ts';
import { hintsOf, nameConflicts } from './documents/names.ts';
import { type Referrer, referencesOf } from './documents/references.ts';
import { at, type Material, type MaterialDeps, materialOf } from './material.ts';
import type { KeyDigest } from './relay-key.ts';
import type { Sealed } from './secrets/secret-box.ts';
import { type CatalogState, objectKey, type StoredObject } from './state.ts';

/** A change of the catalogue. */
export interface Change extends MaterialDeps {
  documents: readonly CatalogDocument[];
  /** Documents that were refused already. A reference to one is not a second fault, but one that it makes can be. */
  claims: readonly Claim[];
  /** Marks what is written as owned by `apply`. */
  applied: boolean;
  /** Deletes objects that `apply` owns and that are missing in `documents`. */
  prune: boolean;
}

/** One object to write. */
export interface Write {
  id: string;
  kind: Kind;
  name: string;
  metadata: object;
  spec: object;
  applied: boolean;
  /** The document differs from the stored one. */
  documentChanged: boolean;
  digest?: KeyDigest;
  secret?: Sealed | null;
  /** Sets the time of revocation. */
  revoke: boolean;
}

/** Everything to do, decided before the first write. Nothing may be written if `faults` is not empty. */
export interface ChangeSet {
  faults: CatalogFault[];
  warnings: CatalogFault[];
  inserts: Write[];
  updates: Write[];
  deletes: StoredObject[];
  /** Unchanged objects that `apply` owns from now on. */
  marks: string[];
  unchanged: number;
}

/** Decides a change against the stored catalogue: pure except for fresh ids and nonces. */
export function planChange(state: CatalogState, change: Change): ChangeSet {
  const plan: ChangeSet = { faults: [], warnings: [], inserts: [], updates: [], deletes: [], marks: [], unchanged: 0 };
  const documents = withoutRepeats(change, plan);
  const incoming = new Map(documents.map((document) => [objectKey(document), document]));
  const untouched = [...state.objects.values()].filter((object) => !incoming.has(objectKey(object)));
  if (change.prune) plan.deletes = untouched.filter((object) => object.applied);
  const gone = new Set(plan.deletes);
  const rest = untouched.filter((object) => !gone.has(object));

  plan.faults.push(...danglingReferences(documents, rest, change, plan.deletes));
  const claimed = new Set(change.claims.map(objectKey));
  const others = rest.filter((object) => !claimed.has(objectKey(object)));
  plan.faults.push(...nameConflicts(others, [...documents, ...change.claims], at));
  plan.warnings.push(...hintsOf(documents, [...rest, ...documents], at));
  const digests = new Map<string, string>();
  for (const object of rest) if (object.key) digests.set(object.key.hash, object.name);
  for (const document of documents) {
    const stored = state.objects.get(objectKey(document)) ?? null;
    const material = materialOf(document, stored, change);
    plan.faults.push(...material.faults);
    plan.warnings.push(...material.warnings);
    const hash = material.digest?.hash ?? stored?.key?.hash;
    if (hash !== undefined) {
      const other = digests.get(hash);
      if (other !== undefined) plan.faults.push(at(document, 'spec.valueFrom', `has the value of Key "${other}"`));
      digests.set(hash, document.name);
    }
    if (material.faults.length === 0 && !material.skip) addDocument(document, stored, material, change, plan);
  }
  return plan;
}

/** Drops repeats of a kind and name, each a fault. Refused documents come first. */
function withoutRepeats({ documents, claims }: Change, plan: ChangeSet): CatalogDocument[] {
  const seen = new Set<string>();
  const isFirst = (document: CatalogDocument | Claim): boolean => {
    const fresh = !seen.has(objectKey(document));
    seen.add(objectKey(document));
    if (!fresh) plan.faults.push(at(document, 'metadata.name', `is given twice: another ${document.kind} has it`));
    return fresh;
  };
  for (const claim of claims) isFirst(claim);
  return documents.filter(isFirst);
}

function danglingReferences(
  documents: readonly CatalogDocument[],
  rest: readonly StoredObject[],
  change: Change,
  deletes: readonly StoredObject[],
): CatalogFault[] {
  const known = new Set([...documents, ...rest, ...change.claims].map(objectKey));
  const faults: CatalogFault[] = [];
  const check = (object: Referrer, fault: (field: string, message: string) => CatalogFault, why: string) => {
    for (const { field, kind, name } of referencesOf(object)) {
      if (!known.has(objectKey({ kind, name }))) faults.push(fault(field, `refers to ${kind} "${name}", which ${why}`));
    }
  };
  for (const document of [...documents, ...change.claims]) {
    check(document, (field, text) => at(document, field, text), 'does not exist');
  }
  if (deletes.length === 0) return faults;
  for (const { kind, name, spec } of rest) {
    const fault = (field: string, message: string) => ({ file: null, document: null, kind, name, field, message });
    check({ kind, name, spec }, fault, 'would be pruned');
  }
  return faults;
}

function addDocument(
  document: CatalogDocument,
  stored: StoredObject | null,
  material: Material,
  change: Change,
  plan: ChangeSet,
): void {
  const id = stored?.id ?? uuidv7();
  const { spec, revoked } = publicSpec(document);
  const write: Write = {
    id,
    kind: document.kind,
    name: document.name,
    metadata: document.metadata,
    spec,
    applied: change.applied || (stored?.applied ?? false),
    documentChanged: stored === null || !sameValue([document.metadata, spec], [stored.metadata, stored.spec]),
    revoke: revoked && !stored?.key?.revokedAt,
  };
  if (material.digest !== undefined) write.digest = material.digest;
  if (typeof material.value === 'string') write.secret = change.box!.seal(id, material.value);
  else if (material.value === null) write.secret = null;

  if (stored === null) plan.inserts.push(write);
  else if (write.documentChanged || write.digest || write.secret !== undefined || write.revoke)
    plan.updates.push(write);
  else {
    plan.unchanged++;
    if (write.applied && !stored.applied) plan.marks.push(id);
  }
}

/** The spec as it is stored: the secret value and the one-way revocation live in columns of their own. */
function publicSpec(document: CatalogDocument): { spec: object; revoked: boolean } {
  if (document.kind === 'HostKey') {
    const { value: _, ...spec } = document.spec;
    return { spec, revoked: false };
  }
  if (document.kind === 'Key') {
    const { revoked, ...spec } = document.spec;
    return { spec, revoked: revoked === true };
  }
  return { spec: document.spec, revoked: false };
}

function sameValue(a: unknown, b: unknown): boolean {
  return JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));
}

/** jsonb does not keep the order of keys. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, inner]) => [key, sorted(inner)]));
}
