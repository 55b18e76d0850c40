import { type Buffer, isUtf8 } from 'node:buffer';
import type { Steps } from '../../../base/turns.ts';
import { MAX_MEMBERS, nameOf, type Span } from '../../../json/members.ts';
import { isUtf8InSteps } from '../../../json/utf8.ts';
import { isObject, startDocument, type Walk, walkAtOnce, walkInSteps } from '../../../json/walk.ts';
import { type LineFault, lineFaults } from './faults.ts';

/** One line of an input file, taken apart without being parsed. Spans count from the start of the line. */
export interface InputLine {
  faults: LineFault[];
  /** The JSON string, quotes included; null if it is missing or not a string. */
  customId: Span | null;
  /** The object that is sent upstream, byte by byte; null if it is missing. */
  body: Span | null;
  /** The body's `model`, when it is a string. */
  model: Span | null;
}

const QUOTE = 0x22;
const OPEN_BRACE = 0x7b;
const BACKSLASH = 0x5c;
const LOWER_T = 0x74;

/** Longer text is neither a method nor an endpoint. */
const MAX_TEXT_BYTES = 1024;

/**
 * Checks a line `{"custom_id","method":"POST","url","body"}` in one pass over its bytes, and reports all that is wrong with
 * it. Further members are ignored, and of duplicates the last one counts, as for JSON.parse. `line` has no white space
 * around. Except `stream` and `background`, the body is judged when the item runs, `model` too. In one go, so only for
 * lines of few steps.
 */
export function readInputLine(line: Buffer, endpoint: string): InputLine {
  if (!isUtf8(line)) return nothing(lineFaults.notUtf8);
  const { walk, found } = startLine(line);
  return walkAtOnce(walk, line) < 0 ? nothing(lineFaults.notJson) : judge(line, endpoint, walk, found);
}

/** The same in steps. */
export function* readInputLineInSteps(line: Buffer, endpoint: string): Steps<InputLine> {
  if (!(yield* isUtf8InSteps(line))) return nothing(lineFaults.notUtf8);
  const { walk, found } = startLine(line);
  return (yield* walkInSteps(walk, line)) < 0 ? nothing(lineFaults.notJson) : judge(line, endpoint, walk, found);
}

function nothing(fault: LineFault): InputLine {
  return { faults: [fault], customId: null, body: null, model: null };
}

const LINE_MEMBERS = ['body', 'custom_id', 'method', 'url'] as const;
const BODY_MEMBERS = ['model', 'stream', 'background'] as const;

function startLine(line: Buffer): { walk: Walk; found: Found } {
  const found: Found = {
    members: 0,
    custom_id: null,
    method: null,
    url: null,
    body: null,
    model: null,
    stream: null,
    background: null,
  };
  let member: (typeof LINE_MEMBERS)[number] | undefined;
  let inBody: (typeof BODY_MEMBERS)[number] | undefined;
  const walk = startDocument(0, 2, {
    key(keyAt, depth) {
      if (depth === 2) {
        inBody = member === 'body' ? nameOf(line, keyAt, BODY_MEMBERS) : undefined;
        return;
      }
      found.members++;
      member = nameOf(line, keyAt, LINE_MEMBERS);
      inBody = undefined;
      if (member !== 'body') return;
      found.model = null;
      found.stream = null;
      found.background = null;
    },
    value(start, end, depth) {
      const name = depth === 1 ? member : inBody;
      if (name !== undefined) found[name] = { start, end };
    },
  });
  return { walk, found };
}

interface Found {
  /** How many members the line has. */
  members: number;
  custom_id: Span | null;
  method: Span | null;
  url: Span | null;
  body: Span | null;
  model: Span | null;
  stream: Span | null;
  background: Span | null;
}

function judge(line: Buffer, endpoint: string, walk: Walk, found: Found): InputLine {
  if (!isObject(walk, line)) return nothing(lineFaults.notObject);
  if (found.members > MAX_MEMBERS) return nothing(lineFaults.tooManyMembers);
  const faults: LineFault[] = [];
  const { custom_id: customId, method, url, body, model, stream, background } = found;
  const isString = (span: Span | null): span is Span => span !== null && line[span.start] === QUOTE;

  if (customId === null) faults.push(lineFaults.missing('custom_id'));
  else if (!isString(customId)) faults.push(lineFaults.customIdNotString);
  if (method === null) faults.push(lineFaults.missing('method'));
  else if (!textIs(line, method, 'POST')) faults.push(lineFaults.method);
  if (url === null) faults.push(lineFaults.missing('url'));
  else if (!textIs(line, url, endpoint)) faults.push(lineFaults.url(endpoint));
  if (body === null) faults.push(lineFaults.missing('body'));
  else if (line[body.start] !== OPEN_BRACE) faults.push(lineFaults.bodyNotObject);
  const isTrue = (span: Span | null) => span !== null && line[span.start] === LOWER_T; // of valid values only `true`
  if (isTrue(stream)) faults.push(lineFaults.stream);
  if (isTrue(background)) faults.push(lineFaults.background);
  return { faults, customId: isString(customId) ? customId : null, body, model: isString(model) ? model : null };
}

function textIs(line: Buffer, span: Span, text: string): boolean {
  if (line[span.start] !== QUOTE || span.end - span.start > MAX_TEXT_BYTES) return false;
  return stringOf(line, span) === text;
}

/** The text of a valid JSON string, whose span has its quotes. */
export function stringOf(line: Buffer, { start, end }: Span): string {
  const backslash = line.subarray(start, end).indexOf(BACKSLASH);
  return backslash < 0 ? line.toString('utf8', start + 1, end - 1) : JSON.parse(line.toString('utf8', start, end));
}
