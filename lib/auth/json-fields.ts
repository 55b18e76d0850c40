import type { z } from 'zod';
import { ApiError } from '../base/errors.ts';

/**
 * Parses a JSON body by its schema. Throws 400 for the first fault: `missing_required_parameter` or `invalid_value`,
 * with the field's path as `param`. The message never repeats a value.
 */
export function parseBody<Schema extends z.ZodType>(schema: Schema, body: unknown): z.infer<Schema> {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw new ApiError('invalid_value', 'request body must be a JSON object');
  }
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0]!;
  if (issue.code === 'unrecognized_keys') {
    const key = issue.keys[0]!;
    throw new ApiError('invalid_value', `${JSON.stringify(key.slice(0, 128))}: unknown field`, {
      param: key.slice(0, 128),
    });
  }
  const param = issue.path.join('.');
  if (!Object.hasOwn(body, param)) {
    throw new ApiError('missing_required_parameter', `missing required parameter: ${param}`, { param });
  }
  throw new ApiError('invalid_value', `${param}: ${issue.message}`, { param });
}
