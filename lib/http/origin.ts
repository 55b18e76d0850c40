import { ApiError } from '../base/errors.ts';
import type { ApiEvent } from './event.ts';

/** A name, an IPv4 address or an IPv6 one in brackets. Clients send their key to what is made of it. */
const HOST = /^(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5})?$/i;

/**
 * How callers reach the inference port, without a slash at its end: as configured, else as this one did, which can mislead
 * nobody but itself. Throws `invalid_value` for a request without Host, or with one that is not a host and perhaps a port.
 */
export function originOf(event: ApiEvent, publicUrl: string | null): string {
  if (publicUrl !== null) return publicUrl.replace(/\/+$/, '');
  const scheme = event.headers['x-forwarded-proto'] === 'https' ? 'https' : 'http';
  const host = event.requestContext.domainName;
  if (!host) throw new ApiError('invalid_value', 'Host is required', { param: 'Host' });
  if (!HOST.test(host))
    throw new ApiError('invalid_value', 'Host must be a host and perhaps a port', { param: 'Host' });
  return `${scheme}://${host}`;
}
