import { z } from 'zod';
import { ApiError } from '../base/errors.ts';
import { PARAM_AND_RULE, parseBy, wholeText } from '../base/parse.ts';

/** A query parameter that is a whole number. */
export const whole = (min: number, max: number) => wholeText(min, max, 10);

/** A query parameter that is `true` or `false`. */
export const flag = () => z.enum(['true', 'false'], 'must be true or false').transform((text) => text === 'true');

/**
 * Reads a query by its contract. Parameters that it does not name are ignored. Throws 400 `invalid_value` with the
 * parameter's name for a value outside of its rule or one given twice, `missing_required_parameter` for an absent one.
 */
export function parseQuery<S extends z.ZodObject>(contract: S, query: URLSearchParams): z.infer<S> {
  const given: Record<string, string> = {};
  for (const name of Object.keys(contract.shape)) {
    const values = query.getAll(name);
    if (values.length > 1) throw new ApiError('invalid_value', `${name} is given twice`, { param: name });
    if (values.length === 1) given[name] = values[0]!;
  }
  return parseBy(contract, given, PARAM_AND_RULE);
}

const PRINTABLE = /^[\x20-\x7e]*$/;
/** Real `anthropic-beta` lists are far shorter; one that was cut would name another feature. */
const MAX_RECORDED = 1024;

/** `Idempotency-Key`: 1-255 printable ASCII characters; null when absent. */
export function idempotencyKeyOf(headers: Record<string, string | undefined>): string | null {
  const key = headers['idempotency-key'];
  if (key === undefined) return null;
  if (key.length >= 1 && key.length <= 255 && PRINTABLE.test(key)) return key;
  const rule = 'Idempotency-Key must be 1 to 255 printable ASCII characters';
  throw new ApiError('invalid_value', rule, { param: 'Idempotency-Key' });
}

/** A header that is kept with the batch and sent upstream: printable ASCII, at most 1,024 characters; else null or 400. */
export function recordedHeader(headers: Record<string, string | undefined>, name: string): string | null {
  const value = headers[name];
  if (value === undefined || value === '') return null;
  if (value.length <= MAX_RECORDED && PRINTABLE.test(value)) return value;
  const rule = `${name} must be at most ${MAX_RECORDED} printable ASCII characters`;
  throw new ApiError('invalid_value', rule, { param: name });
}

/** Refuses a body that came compressed: the limit counts the bytes that are sliced. */
export function refuseEncodedBody(headers: Record<string, string | undefined>): void {
  const encoding = headers['content-encoding']?.trim().toLowerCase();
  if (encoding && encoding !== 'identity') throw new ApiError('unsupported_media_type');
}
