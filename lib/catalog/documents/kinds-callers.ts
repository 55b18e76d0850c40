import { z } from 'zod';
import { enabled, fromEnvironment, moment, name, text } from './fields.ts';

/** A team is only a name, for attribution. */
export const teamSchema = z.strictObject({});

/** A project sets the policy of its service accounts and tokens, and the team of their usage. */
export const projectSchema = z.strictObject({ team: name.optional(), policy: name.optional() });

/** A person: the principal of keys and the subject of tokens. */
export const userSchema = z.strictObject({
  email: text(320)
    .regex(/^[^\s@]+@[^\s@]+$/, 'must be an email address')
    .optional(),
  team: name.optional(),
  enabled,
});

/** A program: the principal of keys. */
export const serviceAccountSchema = z.strictObject({ project: name, policy: name.optional(), enabled });

/** A relay key. Without `valueFrom` the control API makes its plaintext and shows it once. */
export const keySchema = z.strictObject({
  policy: name.optional(),
  principal: z.strictObject({ kind: z.enum(['user', 'serviceaccount']), name }).optional(),
  valueFrom: fromEnvironment.optional(),
  expiresAt: moment.optional(),
  enabled,
  /** One way: a revoked key stays revoked, whatever a later document says. */
  revoked: z.boolean().optional(),
});
