import type { z } from 'zod';
import { parseBy, requireObject, type Wording } from '../base/parse.ts';

const CONTROL: Wording = {
  missing: (param) => `missing required parameter: ${param}`,
  wrong: (param, rule) => `${param}: ${rule}`,
  unknown: (key) => `${JSON.stringify(key)}: unknown field`,
};

/**
 * A JSON body of the control API by its schema. Throws 400 for the first fault: `missing_required_parameter` or
 * `invalid_value`, `param` being the field's path. Values are never echoed.
 */
export function parseBody<Schema extends z.ZodType>(schema: Schema, body: unknown): z.infer<Schema> {
  return parseBy(schema, requireObject(body), CONTROL);
}
