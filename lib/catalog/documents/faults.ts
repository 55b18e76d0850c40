import type { CatalogFault } from './document.ts';

/** A catalogue that was refused, whole, with everything that is wrong with it. Nothing was written. */
export class CatalogError extends Error {
  readonly faults: readonly CatalogFault[];

  constructor(faults: readonly CatalogFault[]) {
    super(faults.map(formatFault).join('; '));
    this.name = 'CatalogError';
    this.faults = faults;
  }
}

/** One line: `catalog.yaml document 3: Binding "gpt-4o": spec.host refers to Host "lokal", which does not exist`. */
export function formatFault(fault: CatalogFault): string {
  const place = [fault.file, fault.document === null ? null : `document ${fault.document}`].filter((p) => p !== null);
  const object = fault.kind === null ? [] : [fault.name === null ? fault.kind : `${fault.kind} "${fault.name}"`];
  const said = fault.field === '' ? fault.message : `${fault.field} ${fault.message}`;
  return [...(place.length > 0 ? [place.join(' ')] : []), ...object, said].join(': ');
}
