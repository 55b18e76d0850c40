import { ApiError } from '../../base/errors.ts';

/** Front-doors section 2: 200 MB. */
export const MAX_FILE_BYTES = 200 * 1024 * 1024;

/** The 413 of a file over the limit; `sent` is how much was announced, or null if nothing was. */
export function fileTooLarge(sent: number | null, maxBytes: number, param = 'file'): ApiError {
  const size = sent === null ? `more than ${maxBytes} bytes` : `${sent} bytes`;
  const message = `file too large: ${size} sent, the limit is ${maxBytes} bytes`;
  return new ApiError('body_too_large', message, { status: 413, param });
}
