import { z } from 'zod';
import { enabled, fromEnvironment, moment, name, text } from './fields.ts';

export const teamSchema = z.strictObject({});

export const projectSchema = z.strictObject({ team: name.optional(), policy: name.optional() });

export const userSchema = z.strictObject({
  email: text(320)
    .regex(/^[^\s@]+@[^\s@]+$/, 'must be an email address')
    .optional(),
  team: name.optional(),
  enabled,
});

export const serviceAccountSchema = z.strictObject({ project: name, policy: name.optional(), enabled });

/** A relay key: without `valueFrom` the control API makes its plaintext and shows it once. */
export const keySchema = z.strictObject({
  policy: name.optional(),
  principal: z.strictObject({ kind: z.enum(['user', 'serviceaccount']), name }).optional(),
  valueFrom: fromEnvironment.optional(),
  expiresAt: moment.optional(),
  enabled,
  /** One way: a revoked key stays revoked, whatever is written later. */
  revoked: z.boolean().optional(),
});
