import { z } from 'zod';
import { isUuid } from '../base/clock.ts';
import { ApiError } from '../base/errors.ts';
import { ITEM_STATES } from '../model/batch.ts';
import { parseMessageBatchId } from '../surfaces/anthropic/message-batch.ts';

/** Idx values fit a Postgres integer. */
const MAX_IDX = 2_147_483_647;

const whole = (min: number, max: number) =>
  z
    .string()
    .regex(/^\d{1,10}$/)
    .transform(Number)
    .pipe(z.number().min(min).max(max))
    .meta({ rule: `must be a whole number from ${min} to ${max}` });
const flag = () =>
  z
    .enum(['true', 'false'])
    .transform((text) => text === 'true')
    .meta({ rule: 'must be true or false' });

/** Query of `GET /v1/batches/{id}`. */
export const GET_QUERY = z.object({ items: flag().default(true), usage: flag().default(false) });

/** Query of `GET /v1/batches/{id}/results`; a page is asked for with `after` or `limit`. */
export const RESULTS_QUERY = z.object({
  after: whole(0, MAX_IDX).optional(),
  limit: whole(1, 10_000).optional(),
  state: z
    .enum(ITEM_STATES)
    .optional()
    .meta({ rule: `must be one of ${ITEM_STATES.join(', ')}` }),
});

/** Query of `GET /v1/batches`. */
export const LIST_QUERY = z.object({
  surface: z.literal('relay').meta({ rule: 'must be relay' }),
  limit: whole(1, 100).default(20),
  after: z.string().refine(isUuid).optional().meta({ rule: 'must be the id of a batch' }),
});

/** Purposes that OpenAI clients may ask for; files of the last ones do not exist here. */
const FILE_PURPOSES = [
  'batch',
  'batch_output',
  'assistants',
  'assistants_output',
  'evals',
  'fine-tune',
  'fine-tune-results',
  'user_data',
  'vision',
] as const;

/** Query of `GET /v1/files`. */
export const FILES_QUERY = z.object({
  after: z.string().optional(),
  limit: whole(1, 10_000).default(10_000),
  order: z.enum(['asc', 'desc']).default('desc').meta({ rule: 'must be asc or desc' }),
  purpose: z
    .enum(FILE_PURPOSES)
    .optional()
    .meta({ rule: `must be one of ${FILE_PURPOSES.join(', ')}` }),
});

const messageBatch = () =>
  z
    .string()
    .refine((id) => parseMessageBatchId(id) !== null)
    .transform((id) => parseMessageBatchId(id)!)
    .optional()
    .meta({ rule: 'must be the id of a message batch' });

/** Query of `GET /v1/messages/batches`; the ids become UUIDs. */
export const MESSAGE_LIST_QUERY = z.object({
  limit: whole(1, 1000).default(20),
  after_id: messageBatch(),
  before_id: messageBatch(),
});

/** Query of `GET /v1/batches` of OpenAI clients; `after` is looked up. */
export const OPENAI_LIST_QUERY = z.object({ limit: whole(1, 100).default(20), after: z.string().optional() });

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
  const parsed = contract.safeParse(given);
  if (parsed.success) return parsed.data;
  const param = String(parsed.error.issues[0]?.path[0]);
  if (!(param in given)) throw new ApiError('missing_required_parameter', `${param} is required`, { param });
  throw new ApiError('invalid_value', `${param} ${ruleOf(contract.shape[param])}`, { param });
}

function ruleOf(schema: unknown): string {
  for (let at = schema; at instanceof z.ZodType; at = (at.def as { innerType?: unknown }).innerType) {
    const rule = at.meta()?.rule;
    if (typeof rule === 'string') return rule;
  }
  return 'is not valid';
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
