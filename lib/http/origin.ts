import { ApiError } from '../errors.ts';
import type { ApiEvent } from './event.ts';

/**
 * How callers reach the inference port, without a slash at its end: as configured, else as this one did, which can mislead
 * nobody but itself. Throws `invalid_value` for a request without Host.
 */
export function originOf(event: ApiEvent, publicUrl: string | null): string {
  if (publicUrl !== null) return publicUrl.replace(/\/+$/, '');
  const scheme = event.headers['x-forwarded-proto'] === 'https' ? 'https' : 'http';
  const host = event.requestContext.domainName;
  if (!host) throw new ApiError('invalid_value', 'Host is required', { param: 'Host' });
  return `${scheme}://${host}`;
}
