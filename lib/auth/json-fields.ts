import type { z } from 'zod';
import { parseBy, requireObject, type Wording } from '../base/parse.ts';

const CONTROL: Wording = {
  missing: (param) => `missing required parameter: ${param}`,
  wrong: (param, rule) => `${param}: ${rule}`,
  unknown: (key) => `${JSON.stringify(key)}: unknown field`,
};

/**
 * Parses a JSON body by its schema. Throws 400 for the first fault: `missing_required_parameter` or `invalid_value`,
 * with the field's path as `param`. The message never repeats a value.
 */
export function parseBody<Schema extends z.ZodType>(schema: Schema, body: unknown): z.infer<Schema> {
  return parseBy(schema, requireObject(body), CONTROL);
}
