const PUBLIC = /^batch_([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/;

/** The id that callers see: `batch_` and the 32 hex digits of the batch's UUID. */
export function publicBatchId(id: string): string {
  return `batch_${id.replaceAll('-', '')}`;
}

/** The UUID of a public id; null for text that is none. */
export function parseBatchId(text: string): string | null {
  const match = PUBLIC.exec(text);
  return match === null ? null : match.slice(1).join('-');
}
