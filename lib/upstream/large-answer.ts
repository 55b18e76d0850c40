import type { Buffer } from 'node:buffer';
import { STEP_BYTES, type Steps } from '../base/turns.ts';
import { findMembersInSteps, keyIs, nameOf, type Span } from '../json/members.ts';
import { skipSpace } from '../json/scan.ts';
import { stringStart } from '../json/strings.ts';
import { isUtf8InSteps } from '../json/utf8.ts';
import { isObject, startDocument, type Walk, walkInSteps } from '../json/walk.ts';
import { type Elements, MAX_TOLD_CHARS, RESULT_FIELD } from './answer-elements.ts';
import type { CallRequest } from './call-result.ts';

type Adapter = CallRequest['adapter'];

/**
 * A large answer, as read. Of an object: `parts` are the members that are measured, each parsed alone, `says` those
 * that tell whether it is an error, `elements` the content of its result field. An `error` is cut down to what it tells
 * (`toldBy`).
 */
export type LargeAnswer =
  | { kind: 'object'; parts: Record<string, unknown>; says: Record<string, unknown>; elements: Elements | null }
  | { kind: 'not_object' }
  | { kind: 'invalid' };

const SAYING = ['error', 'object', 'type', 'message', 'code'] as const;

const WANTED: Record<Adapter, readonly string[]> = {
  openai: [...SAYING, 'usage', 'choices'],
  openai_embeddings: [...SAYING, 'usage', 'data'],
  openai_responses: [...SAYING, 'usage', 'output', 'status', 'incomplete_details'],
  anthropic: [...SAYING, 'usage', 'content', 'stop_reason'],
};

/** The members of an element that decide about it; of other adapters the elements are not looked into. */
const IN_ELEMENT: Partial<Record<Adapter, readonly string[]>> = {
  openai: ['finish_reason', 'error'],
  openai_embeddings: ['embedding'],
};

/** A member beyond this is not parsed: real ones are below 1 KiB. 64 KiB of the worst JSON take JSON.parse 3 ms. */
const MAX_PART_BYTES = 65_536;

const QUOTE = 0x22;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const OPEN_BRACE = 0x7b;
const LOWER_N = 0x6e;

/**
 * Reads an answer that is too large for JSON.parse (200 ms for the worst MiB), with full validation (UTF-8 included) and
 * without building it. A byte order mark is `invalid`, as for JSON.parse: the bytes go into the results document as they
 * are. Of duplicates the last one counts. Of `choices` the parts have the first one's `finish_reason`.
 */
export function* readLargeAnswer(adapter: Adapter, body: Buffer): Steps<LargeAnswer> {
  if (!(yield* isUtf8InSteps(body))) return { kind: 'invalid' };
  const members = new Map<string, Span>();
  const result = resultReader(adapter, body);
  let name: string | undefined;

  const walk: Walk = startDocument(0, 3, {
    key(keyAt, depth) {
      if (depth === 3) result.key(keyAt, walk);
      else if (depth === 1) {
        name = nameOf(body, keyAt, WANTED[adapter]);
        result.begin(name === RESULT_FIELD[adapter]);
      }
    },
    value(start, end, depth) {
      if (depth === 3) result.member({ start, end });
      else if (depth === 2) result.element({ start, end }, walk);
      else if (name !== undefined) members.set(name, { start, end });
    },
  });
  const end = yield* walkInSteps(walk, body);
  if (end < 0) return { kind: 'invalid' };
  if (!isObject(walk, body)) return { kind: 'not_object' };

  const parts: Record<string, unknown> = {};
  const says: Record<string, unknown> = {};
  const field = members.get(RESULT_FIELD[adapter]);
  for (const [member, span] of members) {
    if (member === 'error') says.error = yield* errorAt(body, span);
    else if (member === 'message') says.message = textAt(body, span);
    else if (member !== RESULT_FIELD[adapter]) {
      const into = SAYING.some((name) => name === member) ? says : parts;
      into[member] = parseSpan(body, span);
      yield;
    }
  }
  const { first, failed, count, isOdd } = result.read;
  if (adapter === 'openai' && first !== null) {
    parts.choices = [{ finish_reason: parseSpan(body, first) }];
  }
  const isList = field !== undefined && body[field.start] === OPEN_BRACKET;
  const told = failed === null ? null : yield* errorAt(body, failed);
  return { kind: 'object', parts, says, elements: isList ? { count, isOdd, failed: told } : null };
}

/** Reads the elements of the result field as the walk comes by them. */
function resultReader(adapter: Adapter, body: Buffer) {
  const names = IN_ELEMENT[adapter] ?? [];
  /** `first` is the `finish_reason` of the first element. */
  let read = { count: 0, isOdd: false, first: null as Span | null, failed: null as Span | null };
  let inResult = false;
  let name: string | undefined;
  let members: Record<string, Span | undefined> = {};
  const isListed = (walk: Walk) => inResult && body[walk.starts[1]!] === OPEN_BRACKET;

  const add = (element: Span): void => {
    read.count++;
    if (names.length === 0) return;
    const { finish_reason: reason, error, embedding } = members;
    if (body[element.start] !== OPEN_BRACE) read.isOdd = true;
    else if (adapter === 'openai_embeddings') read.isOdd ||= embedding === undefined || isEmpty(body, embedding);
    else if (error !== undefined && body[error.start] !== LOWER_N) read.failed ??= error;
    else if (reason !== undefined && body[reason.start] === QUOTE && keyIs(body, reason.start, 'error')) {
      read.failed ??= element;
    }
    if (read.count === 1) read.first = reason ?? null;
  };

  return {
    get read() {
      return read;
    },
    /** A member of the answer begins; of duplicates the last one counts. */
    begin(isResult: boolean): void {
      inResult = isResult;
      if (isResult) read = { count: 0, isOdd: false, first: null, failed: null };
      members = {};
    },
    key(keyAt: number, walk: Walk): void {
      if (names.length === 0 || !isListed(walk) || body[walk.starts[2]!] !== OPEN_BRACE) return;
      name = nameOf(body, keyAt, names);
    },
    member(span: Span): void {
      if (name !== undefined) members[name] = span;
      name = undefined;
    },
    element(span: Span, walk: Walk): void {
      if (!isListed(walk)) return;
      add(span);
      if (names.length > 0) members = {};
    },
  };
}

/** A vector is a list of numbers or a text in base64. White space of more than a step is not looked behind. */
function isEmpty(body: Buffer, { start, end }: Span): boolean {
  if (body[start] === QUOTE) return end - start === 2;
  if (body[start] !== OPEN_BRACKET) return true;
  const stop = Math.min(end, start + STEP_BYTES);
  const at = skipSpace(body, start + 1, stop);
  return at === stop || body[at] === CLOSE_BRACKET;
}

/** An `error` as `toldBy` reads it: null, a text, or an object with what it tells. */
function* errorAt(body: Buffer, span: Span): Steps<unknown> {
  if (body[span.start] === LOWER_N) return null;
  if (body[span.start] === QUOTE) return textAt(body, span);
  if (body[span.start] !== OPEN_BRACE) return {};
  const error = body.subarray(span.start, span.end);
  const found = yield* findMembersInSteps(error, ['message', 'code', 'type', 'status']);
  if (found.kind !== 'object') return {};
  const told: Record<string, unknown> = {};
  for (const [name, value] of found.members) {
    told[name] = name === 'message' ? textAt(error, value) : parseSpan(error, value);
    yield;
  }
  return told;
}

function textAt(body: Buffer, { start }: Span): string | null {
  return body[start] === QUOTE ? stringStart(body, start, MAX_TOLD_CHARS) : null;
}

function parseSpan(body: Buffer, { start, end }: Span): unknown {
  return end - start > MAX_PART_BYTES ? null : JSON.parse(body.toString('utf8', start, end));
}
