import { type Buffer, isUtf8 } from 'node:buffer';
import { keyIs, type Span, scanMembers } from '../../../json/members.ts';
import { expectEnd, skipValue } from '../../../json/scan.ts';
import { type LineFault, lineFaults } from './faults.ts';

/** One line of an input file, taken apart without being parsed. Spans count from the start of the line. */
export interface InputLine {
  faults: LineFault[];
  /** The JSON string, quotes included; null when there is none, or it is no string. */
  customId: Span | null;
  /** The object that is sent upstream, byte by byte; null when there is none. */
  body: Span | null;
  /** The body's `model`, when it is a string. */
  model: Span | null;
}

const QUOTE = 0x22;
const OPEN_BRACE = 0x7b;
const BACKSLASH = 0x5c;

/** Longer text is no method and no endpoint, whatever it says. */
const MAX_TEXT_BYTES = 1024;

/**
 * Checks a line `{"custom_id","method":"POST","url","body"}` in one pass over its bytes, and reports all that is wrong with
 * it. Further members are ignored, and of duplicates the last one counts, as for JSON.parse. `line` has no white space
 * around. What the body says beside `stream` is judged when the item runs, `model` too.
 */
export function readInputLine(line: Buffer, endpoint: string): InputLine {
  const nothing = (fault: LineFault): InputLine => ({ faults: [fault], customId: null, body: null, model: null });
  if (!isUtf8(line)) return nothing(lineFaults.notUtf8);
  if (line[0] !== OPEN_BRACE) {
    return nothing(expectEnd(line, skipValue(line, 0)) < 0 ? lineFaults.notJson : lineFaults.notObject);
  }

  const found: Found = { customId: null, method: null, url: null, body: null, model: null, stream: null };
  const inBody = (keyAt: number, valueAt: number) => {
    const end = skipValue(line, valueAt);
    if (end < 0) return end;
    if (keyIs(line, keyAt, 'model')) found.model = { start: valueAt, end };
    else if (keyIs(line, keyAt, 'stream')) found.stream = { start: valueAt, end };
    return end;
  };
  const end = scanMembers(line, 0, (keyAt, valueAt) => {
    if (keyIs(line, keyAt, 'body')) {
      found.model = null;
      found.stream = null;
      const bodyEnd = line[valueAt] === OPEN_BRACE ? scanMembers(line, valueAt, inBody) : skipValue(line, valueAt);
      found.body = { start: valueAt, end: bodyEnd };
      return bodyEnd;
    }
    const valueEnd = skipValue(line, valueAt);
    if (valueEnd < 0) return valueEnd;
    if (keyIs(line, keyAt, 'custom_id')) found.customId = { start: valueAt, end: valueEnd };
    else if (keyIs(line, keyAt, 'method')) found.method = { start: valueAt, end: valueEnd };
    else if (keyIs(line, keyAt, 'url')) found.url = { start: valueAt, end: valueEnd };
    return valueEnd;
  });
  if (expectEnd(line, end) < 0) return nothing(lineFaults.notJson);
  return judge(line, endpoint, found);
}

interface Found {
  customId: Span | null;
  method: Span | null;
  url: Span | null;
  body: Span | null;
  model: Span | null;
  stream: Span | null;
}

function judge(line: Buffer, endpoint: string, found: Found): InputLine {
  const faults: LineFault[] = [];
  const { customId, method, url, body, model, stream } = found;
  const isString = (span: Span | null): span is Span => span !== null && line[span.start] === QUOTE;

  if (customId === null) faults.push(lineFaults.missing('custom_id'));
  else if (!isString(customId)) faults.push(lineFaults.customIdNotString);
  if (method === null) faults.push(lineFaults.missing('method'));
  else if (!textIs(line, method, 'POST')) faults.push(lineFaults.method);
  if (url === null) faults.push(lineFaults.missing('url'));
  else if (!textIs(line, url, endpoint)) faults.push(lineFaults.url(endpoint));
  if (body === null) faults.push(lineFaults.missing('body'));
  else if (line[body.start] !== OPEN_BRACE) faults.push(lineFaults.bodyNotObject);
  if (stream !== null && line[stream.start] === 0x74) faults.push(lineFaults.stream); // of valid values only `true`
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
