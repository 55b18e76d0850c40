import { stringify } from 'yaml';
import type { Db } from '../db/database.ts';
import { readState } from './state.ts';
import { specOf } from './view.ts';

/**
 * The whole catalogue as YAML that applies back to the same state. Secrets are left out: applied to another database,
 * stored host keys have no value and keys without `valueFrom` are left out, each with a warning.
 */
export async function exportCatalog(db: Db): Promise<string> {
  const { objects } = await readState(db);
  const documents = [...objects.values()].map((object) => {
    const { name, kind, metadata } = object;
    return stringify({ kind, metadata: { name, ...metadata }, spec: specOf(object) }, { lineWidth: 0 });
  });
  return documents.join('---\n');
}
