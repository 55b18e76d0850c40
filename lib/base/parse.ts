import { z } from 'zod';
import { ApiError } from './errors.ts';

/** How an API words a fault. `rule` is the message of the schema that was not met. */
export interface Wording {
  missing(param: string): string;
  wrong(param: string, rule: string): string;
  /** Of a member that a strict schema does not know; without it no schema is strict. */
  unknown?(key: string): string;
}

/** Of the native API: `bytes is required`, `bytes must be a whole number from 1`. The schema says `must be ...`. */
export const PARAM_AND_RULE: Wording = {
  missing: (param) => `${param} is required`,
  wrong: (param, rule) => `${param} ${rule}`,
};

/**
 * Reads a value by its schema. Throws 400 for the first fault: `missing_required_parameter` for an absent value, else
 * `invalid_value`. `param` is the path of the fault, in which places of a list do not count.
 */
export function parseBy<Schema extends z.ZodType>(schema: Schema, value: unknown, wording: Wording): z.infer<Schema> {
  const parsed = schema.safeParse(value, { reportInput: true });
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0]!;
  if (issue.code === 'unrecognized_keys' && wording.unknown) {
    const key = issue.keys[0]!.slice(0, 128);
    throw new ApiError('invalid_value', wording.unknown(key), { param: key });
  }
  const param = paramOf(issue.path);
  if (issue.input === undefined && issue.code !== 'custom') {
    throw new ApiError('missing_required_parameter', wording.missing(param), { param });
  }
  throw new ApiError('invalid_value', wording.wrong(param, issue.message), { param });
}

/** Throws 400 unless a request body is a JSON object. */
export function requireObject(body: unknown): Readonly<Record<string, unknown>> {
  if (isObject(body)) return body;
  throw new ApiError('invalid_value', 'request body must be a JSON object');
}

/** True for what JSON calls an object. */
export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The name of a parameter. */
export function paramOf(path: readonly PropertyKey[]): string {
  return path.filter((step) => typeof step === 'string').join('.');
}

/** A whole number, sent as text. Zeros in front count as digits. */
export function wholeText(min: number, max: number, maxDigits: number) {
  const digits = new RegExp(`^\\d{1,${maxDigits}}$`);
  const rule = `must be a whole number from ${min} to ${max}`;
  return z
    .string()
    .refine((text) => digits.test(text) && Number(text) >= min && Number(text) <= max, rule)
    .transform(Number);
}
