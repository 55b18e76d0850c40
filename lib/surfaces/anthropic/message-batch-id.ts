const PREFIX = 'msgbatch_01';
const HEX = 32;

/** The public id of a batch: `msgbatch_01` and the 32 hex digits of its UUID. */
export function messageBatchId(uuid: string): string {
  return PREFIX + uuid.replaceAll('-', '');
}

/** The UUID of a public id; null for anything that is none. */
export function parseMessageBatchId(id: string): string | null {
  const hex = id.slice(PREFIX.length);
  if (!id.startsWith(PREFIX) || hex.length !== HEX || !/^[0-9a-f]*$/.test(hex)) return null;
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
