import { z } from 'zod';
import { cutText } from '../../base/errors.ts';
import { slug } from '../../model/slug.ts';
import { name as nameField } from './fields.ts';
import { KINDS, type Kind, SPECS, type SpecOf } from './kinds.ts';

/** One fault of a catalogue, and where it is. Never holds a secret, and only a cut of what was written. */
export interface CatalogFault {
  /** The path of the YAML file; null for a body of the control API. */
  file: string | null;
  /** The number of the document in its file, from 1. Null if the fault is the file's, or without a file. */
  document: number | null;
  kind: string | null;
  name: string | null;
  /** Such as `spec.rules[0].meter`; empty if the fault is the whole document's. */
  field: string;
  message: string;
}

/** The metadata that every kind may carry besides its name. The service itself does not use it. */
export interface Metadata {
  displayName?: string | undefined;
  labels?: Record<string, string> | undefined;
}

/** The place where a document was read. */
export interface Where {
  file: string | null;
  document: number | null;
}

interface DocumentOf<K extends Kind> extends Where {
  kind: K;
  name: string;
  metadata: Metadata;
  spec: SpecOf<K>;
}

/** A document that passed the schema of its kind. References and rules across documents are checked when it is applied. */
export type CatalogDocument = { [K in Kind]: DocumentOf<K> }[Kind];

/** A valid document, or all its faults (never an empty list). */
export type Checked = { ok: true; document: CatalogDocument } | { ok: false; faults: CatalogFault[] };

const label = z
  .string()
  .max(1024, 'must be at most 1024 characters')
  .regex(/^[^\p{Cc}\p{Cs}]*$/u, 'must not contain line breaks, NUL or other control characters');

const envelope = z.strictObject({
  kind: z.enum(KINDS),
  metadata: z.strictObject({
    name: nameField,
    displayName: label.min(1, 'must not be empty').optional(),
    labels: z.record(z.string().regex(/^[A-Za-z0-9._/-]{1,128}$/), label).optional(),
  }),
  spec: z.unknown().optional(),
});

/** Checks one whole document and returns every fault. `raw` may be anything that YAML or JSON can hold. */
export function checkDocument(raw: unknown, where: Where): Checked {
  const outer = envelope.safeParse(raw, { error: messageOf });
  const kind = kindIn(raw);
  const name = nameIn(raw);
  const inner = kind === null ? null : SPECS[kind].safeParse(specIn(raw), { error: messageOf });
  if (outer.success && inner?.success && !hasProto(raw)) {
    const { spec: _, kind: __, ...rest } = outer.data;
    const { name: own, ...metadata } = rest.metadata;
    if (kind !== 'Model' || slug(own) !== '') {
      return { ok: true, document: { ...where, kind, name: own, metadata, spec: inner.data } as CatalogDocument };
    }
  }
  const fault = (field: string, message: string): CatalogFault => ({ ...where, kind, name, field, message });
  const faults = [
    ...(outer.error?.issues ?? []).flatMap((issue) => explain(issue, [], fault)),
    ...(inner?.error?.issues ?? []).flatMap((issue) => explain(issue, ['spec'], fault)),
  ];
  if (hasProto(raw)) faults.push(fault('metadata.labels', 'unknown field "__proto__"'));
  if (kind === 'Model' && outer.success && name !== null && slug(name) === '') {
    faults.push(fault('metadata.name', 'must contain a letter or a digit'));
  }
  return { ok: false, faults };
}

/** A faulty document as far as it is valid. A reference to it is not a second fault; its own ones are checked. */
export interface Claim extends Where {
  kind: Kind;
  name: string;
  /** The fields that are valid by themselves. */
  spec: Record<string, unknown>;
}

/** Returns what a document claims, even a faulty one; null if its kind or name is missing or unknown. */
export function claimOf(raw: unknown, where: Where): Claim | null {
  const [kind, name] = [kindIn(raw), nameIn(raw)];
  if (kind === null || name === null) return null;
  const spec = specIn(raw);
  const good = Object.entries<z.ZodType>(SPECS[kind].shape).flatMap(([key, field]) => {
    const parsed = field.safeParse(fieldOf(spec, key));
    return parsed.success && parsed.data !== undefined ? [[key, parsed.data]] : [];
  });
  return { ...where, kind, name, spec: Object.fromEntries(good) };
}

function explain(
  issue: z.core.$ZodIssue,
  prefix: PropertyKey[],
  fault: (field: string, message: string) => CatalogFault,
): CatalogFault[] {
  const path = [...prefix, ...issue.path];
  if (issue.code !== 'unrecognized_keys') return [fault(formatPath(path), issue.message)];
  return issue.keys.map((key) => fault(formatPath([...path, key]), 'unknown field'));
}

/** `spec.rules[0].meter`; a key that is not a plain word is in quotes. */
function formatPath(path: readonly PropertyKey[]): string {
  let out = '';
  for (const step of path) {
    const word = cutText(String(step), 64);
    if (typeof step === 'number') out += `[${step}]`;
    else if (/^[\w-]+$/.test(word)) out += out === '' ? word : `.${word}`;
    else out += `["${word}"]`;
  }
  return out;
}

const TYPES: Record<string, string> = {
  string: 'a string',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  object: 'a mapping',
  record: 'a mapping',
  array: 'a list',
};

/** Returns words for zod's finding where the field itself has none. It never repeats a value: one might be a secret. */
function messageOf(issue: z.core.$ZodRawIssue): string | undefined {
  switch (issue.code) {
    case 'invalid_type':
      return issue.input === undefined ? 'is required' : `must be ${TYPES[issue.expected] ?? issue.expected}`;
    case 'invalid_value':
      return issue.input === undefined ? 'is required' : `must be one of ${issue.values.join(', ')}`;
    case 'invalid_union':
      return Array.isArray(issue.options) ? `must be one of ${issue.options.join(', ')}` : undefined;
    case 'invalid_key':
      return 'must be 1-128 characters of A-Z a-z 0-9 . _ / -';
    default:
      return undefined;
  }
}

function fieldOf(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    ? (value as Record<string, unknown>)[key]
    : undefined;
}

function kindIn(raw: unknown): Kind | null {
  return KINDS.find((kind) => kind === fieldOf(raw, 'kind')) ?? null;
}

function nameIn(raw: unknown): string | null {
  const name = fieldOf(fieldOf(raw, 'metadata'), 'name');
  return typeof name === 'string' ? cutText(name) : null;
}

/** `spec:` with nothing behind it is null in YAML. Kinds without required fields read it as empty. */
function specIn(raw: unknown): unknown {
  return fieldOf(raw, 'spec') ?? {};
}

/** zod's records silently ignore a key `__proto__`, but no part of a catalogue may be ignored. */
function hasProto(raw: unknown): boolean {
  return fieldOf(fieldOf(fieldOf(raw, 'metadata'), 'labels'), '__proto__') !== undefined;
}

/** The error of a catalogue that was refused as a whole, with all its faults. Nothing was written. */
export class CatalogError extends Error {
  readonly faults: readonly CatalogFault[];

  constructor(faults: readonly CatalogFault[]) {
    super(faults.map(formatFault).join('; '));
    this.name = 'CatalogError';
    this.faults = faults;
  }
}

/** One line: `catalog.yaml document 3: Binding "gpt-4o": spec.host refers to Host "lokal", which does not exist`. */
export function formatFault(fault: CatalogFault): string {
  const place = [fault.file, fault.document === null ? null : `document ${fault.document}`].filter((p) => p !== null);
  const object = fault.kind === null ? [] : [fault.name === null ? fault.kind : `${fault.kind} "${fault.name}"`];
  const said = fault.field === '' ? fault.message : `${fault.field} ${fault.message}`;
  return [...(place.length > 0 ? [place.join(' ')] : []), ...object, said].join(': ');
}
