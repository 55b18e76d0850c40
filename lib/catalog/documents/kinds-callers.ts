import { z } from 'zod';
import { enabled, fromEnvironment, moment, name, text } from './fields.ts';

/** Only a name, for attribution. */
export const teamSchema = z.strictObject({});

/** Gives its service accounts and tokens a policy, and their usage a team. */
export const projectSchema = z.strictObject({ team: name.optional(), policy: name.optional() });

/** A person: principal of keys, subject of tokens. */
export const userSchema = z.strictObject({
  email: text(320)
    .regex(/^[^\s@]+@[^\s@]+$/, 'must be an email address')
    .optional(),
  team: name.optional(),
  enabled,
});

/** A program: principal of keys. */
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
