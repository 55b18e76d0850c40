import { z } from 'zod';
import { ADAPTERS } from '../../model/catalog.ts';
import { slug, wildcardSlugs } from '../../model/slug.ts';
import {
  baseURL,
  dayOrMoment,
  distinct,
  enabled,
  fromEnvironment,
  headerSecret,
  name,
  text,
  urlPath,
} from './fields.ts';

/** The upstream that requests are sent to. */
export const hostSchema = z.strictObject({
  baseURL,
  path: urlPath.optional(),
  noAuth: z.boolean().optional(),
  enabled,
});

/** A credential of a host. `value` is write-only: it is sealed and removed before the document is stored. */
export const hostKeySchema = z
  .strictObject({
    host: name,
    valueFrom: z.discriminatedUnion('kind', [fromEnvironment, z.strictObject({ kind: z.literal('stored') })]),
    value: headerSecret.optional(),
    policy: name.optional(),
    enabled,
  })
  .superRefine((spec, ctx) => {
    if (spec.value !== undefined && spec.valueFrom.kind !== 'stored') {
      ctx.addIssue({ code: 'custom', path: ['value'], message: 'goes with valueFrom.kind stored only' });
    }
  });

/** An alias: a name, or a pattern with one `*` that is not first. */
const alias = text(256).superRefine((value, ctx) => {
  const [before = '', after, ...more] = value.split('*');
  const fault = (message: string) => ctx.addIssue({ code: 'custom', message });
  if (more.length > 0) fault('must contain at most one *');
  else if (after === undefined) slug(before) === '' && fault('must contain a letter or a digit');
  else if (before === '') fault('must not start with *');
  else if (wildcardSlugs(before, after).prefix === '') fault('must have a letter or a digit before the *');
});

const snapshotName = text(256).refine(
  (value) => slug(value) !== '' && !value.includes('*'),
  'must contain a letter or a digit and no *',
);

/** A model, as callers request it. `names.ts` compares the names of all models. */
export const modelSchema = z.strictObject({
  provider: name.refine((value) => slug(value) !== '', 'must contain a letter or a digit'),
  aliases: distinct(alias, 1000).optional(),
  snapshots: z
    .array(z.strictObject({ name: snapshotName, upstreamName: text(256).optional() }))
    .max(1000, 'must have at most 1000 entries')
    .superRefine((snapshots, ctx) => {
      const seen = new Set<string>();
      for (const [i, snapshot] of snapshots.entries()) {
        const key = slug(snapshot.name);
        if (seen.has(key))
          ctx.addIssue({ code: 'custom', path: [i, 'name'], message: 'is the name of another snapshot' });
        seen.add(key);
      }
    })
    .optional(),
  deprecation: z
    .strictObject({
      status: z.enum(['active', 'deprecated', 'sunset']),
      sunsetDate: dayOrMoment.optional(),
      replacement: text(256).optional(),
    })
    .optional(),
  enabled,
});

/** A model on a host, in a wire format. */
export const bindingSchema = z.strictObject({
  model: name,
  host: name,
  adapter: z.enum(ADAPTERS).optional(),
  upstreamName: text(256).optional(),
  pricing: name.optional(),
  priority: z
    .int('must be a whole number')
    .min(-1_000_000, 'must be at least -1000000')
    .max(1_000_000, 'must be at most 1000000')
    .optional(),
  enabled,
});
