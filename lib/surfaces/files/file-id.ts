const FILE_ID = /^file-([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/;

/** The public id of a file: `file-` and the 32 hex digits of its UUID. */
export function fileIdOf(uuid: string): string {
  return `file-${uuid.replaceAll('-', '')}`;
}

/** The UUID in a public id; null for text of any other form, capitals included. */
export function uuidOfFileId(id: string): string | null {
  const digits = FILE_ID.exec(id);
  return digits === null ? null : digits.slice(1).join('-');
}
