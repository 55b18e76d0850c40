import { cutText } from '../base/errors.ts';

/** What the client needs of an answer's head; everything else stays unread. */
export interface ResponseHead {
  /** Lower case, as sent: `gzip`, or a list in the order in which the encodings were applied. Null when absent. */
  contentEncoding: string | null;
  contentType: string | null;
  /** Bytes on the wire; null when absent or not a number. */
  contentLength: number | null;
  retryAfter: string | null;
  date: string | null;
  /** `x-request-id`, else `request-id` (Anthropic); cut to 128 characters. */
  requestId: string | null;
}

/**
 * Reads the head from undici's raw pairs (name, value, name, value). The length of a name decides first, so that the
 * dozen other headers of an answer are never turned into strings. The last one of a repeated header counts, except that
 * repeated Content-Encoding lines are one list.
 */
export function readResponseHead(raw: readonly Buffer[]): ResponseHead {
  const head: ResponseHead = {
    contentEncoding: null,
    contentType: null,
    contentLength: null,
    retryAfter: null,
    date: null,
    requestId: null,
  };
  let fallbackId: string | null = null;
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i]!;
    const value = raw[i + 1]!;
    switch (name.length) {
      case 4:
        if (is(name, 'date')) head.date = value.toString('latin1');
        break;
      case 10:
        if (is(name, 'request-id')) fallbackId = cutText(value.toString('latin1'));
        break;
      case 11:
        if (is(name, 'retry-after')) head.retryAfter = value.toString('latin1');
        break;
      case 12:
        if (is(name, 'content-type')) head.contentType = cutText(value.toString('latin1'));
        else if (is(name, 'x-request-id')) head.requestId = cutText(value.toString('latin1'));
        break;
      case 14:
        if (is(name, 'content-length')) head.contentLength = lengthOf(value.toString('latin1'));
        break;
      case 16:
        if (is(name, 'content-encoding')) {
          const encoding = value.toString('latin1').toLowerCase();
          head.contentEncoding = head.contentEncoding === null ? encoding : `${head.contentEncoding},${encoding}`;
        }
        break;
    }
  }
  head.requestId ??= fallbackId;
  return head;
}

function is(bytes: Buffer, lowerCaseName: string): boolean {
  return bytes.toString('latin1').toLowerCase() === lowerCaseName;
}

function lengthOf(text: string): number | null {
  return /^\d{1,15}$/.test(text) ? Number(text) : null;
}
