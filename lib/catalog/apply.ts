import type { Database } from '../db/database.ts';
import { lockCatalog } from './catalog-state.sql.ts';
import { planChange } from './change-set.ts';
import { CatalogError, type CatalogFault } from './documents/document.ts';
import type { CatalogSource } from './documents/yaml.ts';
import type { SecretBox } from './secrets/secret-box.ts';
import { readState } from './state.ts';
import { writeChangeSet } from './write.ts';

/** Where an apply takes secrets from, and whether it may delete. */
export interface ApplyOptions {
  env: Readonly<Record<string, string | undefined>>;
  /** Null without RELAY_MASTER_KEY: host keys with a stored value are then refused. */
  secretBox: SecretBox | null;
  /** Delete what was applied before and is no longer in the documents. */
  prune?: boolean;
}

/** The result of an apply: counts of objects. */
export interface ApplyResult {
  created: number;
  updated: number;
  deleted: number;
  unchanged: number;
  /** Nothing that stops the apply: unset variables, keys left out, grants that name nothing. */
  warnings: CatalogFault[];
  /** The new catalogue version; null when nothing changed. */
  version: number | null;
}

/**
 * Applies YAML documents: one transaction under the catalogue lock, all or nothing. Objects are upserted by kind and
 * name and keep their ids; nothing is deleted without `prune`. Throws CatalogError with every fault there is.
 */
export async function applyCatalog(db: Database, source: CatalogSource, options: ApplyOptions): Promise<ApplyResult> {
  return db.transaction(async (tx) => {
    await lockCatalog(tx);
    const plan = planChange(await readState(tx), {
      documents: source.documents,
      claims: source.claims,
      applied: true,
      prune: options.prune ?? false,
      env: options.env,
      box: options.secretBox,
      newKey: null,
    });
    const faults = [...source.faults, ...plan.faults].sort(inSourceOrder);
    if (faults.length > 0) throw new CatalogError(faults);
    const version = await writeChangeSet(tx, plan);
    return {
      created: plan.inserts.length,
      updated: plan.updates.length,
      deleted: plan.deletes.length,
      unchanged: plan.unchanged,
      warnings: plan.warnings,
      version,
    };
  });
}

function inSourceOrder(a: CatalogFault, b: CatalogFault): number {
  const [left, right] = [a.file ?? '', b.file ?? ''];
  return left < right ? -1 : left > right ? 1 : (a.document ?? 0) - (b.document ?? 0);
}
