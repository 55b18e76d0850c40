import { configFaultOf, faultName, isNotFound } from './s3-errors.ts';

/**
 * Codes of files, also on NFS ("Transient reads" in docs/spec/engine-guarantees.md), and of the network to S3, its
 * names included.
 */
const PASSING_CODES: ReadonlySet<unknown> = new Set([
  ...['EIO', 'ESTALE', 'EACCES', 'EAGAIN', 'EBUSY', 'EMFILE', 'ENFILE', 'ENODEV', 'ENXIO', 'EREMOTEIO', 'ENOTCONN'],
  ...[
    'ETIMEDOUT',
    'EHOSTDOWN',
    'EHOSTUNREACH',
    'ENETDOWN',
    'ENETUNREACH',
    'ECONNREFUSED',
    'ECONNRESET',
    'ECONNABORTED',
  ],
  ...['EPIPE', 'ENOTFOUND', 'EAI_AGAIN'],
]);

/** The names of S3 errors below 500 that pass by themselves. */
const PASSING_NAMES = /^(SlowDown|Throttl|TooManyRequests|RequestTime|TimeoutError|ExpiredToken)/;

/**
 * Returns whether a read of the payload store failed in a way that passes by itself: throttling, 5xx, an unavailable
 * network or mount. False for a missing object, a short one, and a fault that a person must fix (s3-errors.ts).
 */
export function isStoreAway(error: unknown): boolean {
  const { code, $metadata } = (error ?? {}) as { code?: unknown; $metadata?: { httpStatusCode?: number } };
  if (PASSING_CODES.has(code)) return true;
  if ($metadata === undefined || configFaultOf(error) !== null || isNotFound(error)) return false;
  const status = $metadata.httpStatusCode;
  return status === 429 || (status !== undefined && status >= 500) || PASSING_NAMES.test(faultName(error));
}
