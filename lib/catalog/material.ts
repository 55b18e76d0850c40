import { timingSafeEqual } from 'node:crypto';
import type { CatalogDocument, CatalogFault, Where } from './documents/document.ts';
import { HEADER_SECRET, HEADER_SECRET_FAULT } from './documents/fields.ts';
import { digestKey, type KeyDigest } from './relay-key.ts';
import type { SecretBox } from './secrets/secret-box.ts';
import type { StoredObject } from './state.ts';

/** The sources of secrets. */
export interface MaterialDeps {
  env: Readonly<Record<string, string | undefined>>;
  /** Null without RELAY_MASTER_KEY. */
  box: SecretBox | null;
  /**
   * Makes the value of a key without `valueFrom`. Null for `apply`, which has nobody to show a plaintext to: there, a
   * value that cannot be made yet is a warning. Through the control API the same is a fault.
   */
  newKey: (() => KeyDigest) | null;
}

/** The secret part of a document, which is written beside it. */
export interface Material {
  /** The new digest of a Key; undefined keeps the stored one. */
  digest?: KeyDigest;
  /** The new plaintext of a HostKey; null deletes the stored one; undefined keeps it. */
  value?: string | null;
  /** True for a Key that cannot be made now: it is left out, with a warning. */
  skip?: boolean;
  faults: CatalogFault[];
  warnings: CatalogFault[];
}

/** Looks up and checks the secret part of a document. An empty variable counts as unset. */
export function materialOf(document: CatalogDocument, stored: StoredObject | null, deps: MaterialDeps): Material {
  const material: Material = { faults: [], warnings: [] };
  if (document.kind === 'HostKey') hostKeyMaterial(document, stored, deps, material);
  if (document.kind === 'Key') keyMaterial(document, stored, deps, material);
  return material;
}

type OfKind<K extends CatalogDocument['kind']> = Extract<CatalogDocument, { kind: K }>;

function hostKeyMaterial(
  document: OfKind<'HostKey'>,
  stored: StoredObject | null,
  deps: MaterialDeps,
  out: Material,
): void {
  const { valueFrom, value } = document.spec;
  if (valueFrom.kind === 'env') {
    if (stored?.secret) out.value = null;
    const found = deps.env[valueFrom.env];
    // Another replica may have it; this one continues without the key.
    if (!found) out.warnings.push(at(document, 'spec.valueFrom.env', `names ${valueFrom.env}, which is not set`));
    else if (!HEADER_SECRET.test(found)) out.faults.push(badVariable(document, valueFrom.env));
    return;
  }
  if (value !== undefined) {
    if (deps.box === null) out.faults.push(at(document, 'spec.value', 'cannot be stored: RELAY_MASTER_KEY is not set'));
    else if (!holds(stored, value, deps.box)) out.value = value;
  } else if (!stored?.secret) {
    const faults = deps.newKey === null ? out.warnings : out.faults;
    faults.push(at(document, 'spec.value', 'is required: no value is stored yet'));
  }
}

function keyMaterial(document: OfKind<'Key'>, stored: StoredObject | null, deps: MaterialDeps, out: Material): void {
  const soft = deps.newKey === null ? out.warnings : out.faults;
  if (document.spec.revoked === false && stored?.key?.revokedAt) {
    soft.push(at(document, 'spec.revoked', 'cannot be taken back: a revoked key stays revoked'));
  }
  const variable = document.spec.valueFrom?.env;
  if (variable === undefined) {
    if (stored?.key) return;
    if (deps.newKey !== null) out.digest = deps.newKey();
    else {
      out.skip = true;
      soft.push(at(document, 'spec.valueFrom', 'is missing: apply leaves the key out, the control API can create it'));
    }
    return;
  }
  const plaintext = deps.env[variable];
  if (!plaintext) {
    out.skip = !stored?.key;
    soft.push(
      at(
        document,
        'spec.valueFrom.env',
        `names ${variable}, which is not set${out.skip ? ': the key is left out' : ''}`,
      ),
    );
  } else if (!HEADER_SECRET.test(plaintext)) {
    out.faults.push(badVariable(document, variable));
  } else {
    const digest = digestKey(plaintext);
    if (digest.hash !== stored?.key?.hash) out.digest = digest;
  }
}

function badVariable(document: CatalogDocument, variable: string): CatalogFault {
  return at(document, 'spec.valueFrom.env', `names ${variable}, whose value ${HEADER_SECRET_FAULT}`);
}

/** True if that very value is stored: to apply it again then changes nothing. */
function holds(stored: StoredObject | null, value: string, box: SecretBox): boolean {
  if (!stored?.secret || stored.secret.keyId !== box.keyId) return false;
  const old = box.open(stored.id, stored.secret);
  const next = Buffer.from(value);
  return old.length === next.length && timingSafeEqual(old, next);
}

/** A fault at a field of a document. */
export function at(document: Where & { kind: string; name: string }, field: string, message: string): CatalogFault {
  const { file, document: number, kind, name } = document;
  return { file, document: number, kind, name, field, message };
}
