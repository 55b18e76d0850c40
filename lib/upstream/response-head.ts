import { cutText } from '../base/errors.ts';

/** The parts of an answer's head that the client reads; everything else stays unread. */
export interface ResponseHead {
  /** Lower case, as sent: `gzip`, or a list in the order in which the encodings were applied. Null when absent. */
  contentEncoding: string | null;
  contentType: string | null;
  /** Bytes on the wire; null when absent or not a number. */
  contentLength: number | null;
  retryAfter: string | null;
  /** `retry-after-ms` (OpenAI), else `x-ms-retry-after-ms` (Azure). */
  retryAfterMs: string | null;
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
    retryAfterMs: null,
    date: null,
    requestId: null,
  };
  let fallbackId: string | null = null;
  let azureRetryAfterMs: string | null = null;
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
        else if (is(name, 'retry-after-ms')) head.retryAfterMs = value.toString('latin1');
        break;
      case 16:
        if (is(name, 'content-encoding')) {
          const encoding = value.toString('latin1').toLowerCase();
          head.contentEncoding = head.contentEncoding === null ? encoding : `${head.contentEncoding},${encoding}`;
        }
        break;
      case 19:
        if (is(name, 'x-ms-retry-after-ms')) azureRetryAfterMs = value.toString('latin1');
        break;
    }
  }
  head.retryAfterMs ??= azureRetryAfterMs;
  head.requestId ??= fallbackId;
  return head;
}

function is(bytes: Buffer, lowerCaseName: string): boolean {
  return bytes.toString('latin1').toLowerCase() === lowerCaseName;
}

function lengthOf(text: string): number | null {
  return /^\d{1,15}$/.test(text) ? Number(text) : null;
}

type Waiting = Pick<ResponseHead, 'retryAfter' | 'retryAfterMs' | 'date'>;

/** Milliseconds that an answer's head asks to wait for. A header in milliseconds counts before Retry-After. */
export function retryAfterOf({ retryAfter, retryAfterMs, date }: Waiting, nowMs: number): number | null {
  const text = retryAfterMs?.trim() ?? '';
  if (/^\d{1,15}(\.\d+)?$/.test(text)) return Math.ceil(Number(text));
  return parseRetryAfter(retryAfter, date, nowMs);
}

/**
 * Milliseconds that a Retry-After header asks for, never negative: whole or decimal seconds, or an HTTP date (RFC 9110
 * section 10.2.3). A date is taken relative to the answer's own Date header where there is one, because the two hosts'
 * clocks need not agree; else relative to `nowMs`. Null when absent or unreadable, which the key pool treats as "none".
 *
 * @internal Exported for its tests.
 */
export function parseRetryAfter(value: string | null, date: string | null, nowMs: number): number | null {
  if (value === null) return null;
  const text = value.trim();
  // 15 digits of seconds stay exact in milliseconds within a double's 2^53, near enough for a pause.
  if (/^\d{1,15}(\.\d+)?$/.test(text)) return Math.round(Number(text) * 1000);
  const at = httpDate(text);
  if (at === null) return null;
  const base = date === null ? null : httpDate(date.trim());
  return Math.max(0, at - (base ?? nowMs));
}

/** Epoch ms of an HTTP date; only what starts with a weekday, since Date.parse also takes bare numbers for years. */
function httpDate(text: string): number | null {
  if (!/^(mon|tue|wed|thu|fri|sat|sun)/i.test(text)) return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}
