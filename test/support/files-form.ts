/** A part of a form; with a filename it is sent as browsers send files. Strings are UTF-8. */
export interface Part {
  name: string;
  filename?: string | Buffer;
  value: string | Buffer;
}

export const BOUNDARY = 'x-test-boundary';

/** The bytes of a form, its names raw as they are given. */
export function formOf(parts: readonly Part[]): Buffer {
  const pieces = parts.flatMap(({ name, filename, value }) => [
    `--${BOUNDARY}\r\nContent-Disposition: form-data; name="${name}"`,
    ...(filename === undefined ? [] : ['; filename="', filename, '"\r\nContent-Type: text/plain']),
    '\r\n\r\n',
    value,
    '\r\n',
  ]);
  return Buffer.concat([...pieces, `--${BOUNDARY}--\r\n`].map((piece) => Buffer.from(piece as string)));
}
