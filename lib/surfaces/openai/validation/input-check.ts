import { Buffer } from 'node:buffer';
import { createHash, hash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { type BodyAccount, UNCOUNTED } from '../../../base/body-budget.ts';
import { cutText } from '../../../base/errors.ts';
import { crc32InSteps, piecesOf, STEP_BYTES, type Steps } from '../../../base/turns.ts';
import { type Spans, spanList } from '../../../json/spans.ts';
import { stringPieces, stringStart } from '../../../json/strings.ts';
import { type Fault, fileFaults, type LineFault, lineFaults, MAX_FAULTS } from './faults.ts';
import { readInputLine, readInputLineInSteps, stringOf } from './input-line.ts';
import { type LineBytes, lineReader } from './line-reader.ts';

/**
 * Requests of one batch, and bytes of one of its lines ("Validation of the input file" in docs/spec/openai-surface.md;
 * a native submit is as large at most).
 */
const MAX_REQUESTS = 50_000;
export const MAX_LINE_BYTES = 32 * 1024 * 1024;

/**
 * The number of these rules. A file that was checked once is not checked again for its endpoint: raise it whenever a file
 * may come to something else, or files keep what an earlier release found.
 */
export const CHECK_RULES = 1;

/** The result of reading an input file. The other members count only without faults. */
export interface CheckedInput {
  faults: Fault[];
  /** Where the body of each request stands in the file. */
  items: Spans;
  /** CRC32 of each body. */
  crcs: Uint32Array;
  /** The `model` of all requests when they name the same, cut to 128 characters; else null. */
  model: string | null;
}

/** A check of an input file that arrives in pieces; it looks at every line and keeps numbers and digests of them. */
export interface InputCheck {
  push(chunk: Buffer): Steps<void>;
  /** True when no more faults are reported, and the rest of the file makes no difference. */
  full(): boolean;
  /** The custom_ids found since the last call, as they were sent: one JSON string a line. */
  takeCustomIds(): Buffer;
  end(): Steps<CheckedInput>;
}

/** The memory of a line until its item is recorded: the key of its custom_id, its place and its checksum. */
const LINE_BYTES = 320;
const LF = Buffer.from('\n');
/** A custom_id in a duplicate's message is cut anyway: a longer one is not even decoded. */
const MAX_SHOWN_BYTES = 1024;
/** More than what is shown of a model. */
const MAX_MODEL_CHARS = 1024;
const BACKSLASH = 0x5c;

/** A check for a batch with this endpoint. `account` counts what is in memory of the file. */
export function inputCheck(endpoint: string, account: Pick<BodyAccount, 'part'> = UNCOUNTED): InputCheck {
  const reader = lineReader(MAX_LINE_BYTES, account.part());
  const spans = spanList();
  const crcs = new Uint32Array(MAX_REQUESTS);
  const faults: Fault[] = [];
  const firstLines = new Map<string, number>();
  const reserveLines = account.part();
  let reserved = 64;
  let customIds: Buffer[] = [];
  let requests = 0;
  let firstModel: Buffer | null = null;
  let sameModel = true;

  const report = (line: number, found: LineFault) => {
    if (faults.length < MAX_FAULTS) faults.push({ ...found, line });
  };
  const compareModel = (model: Buffer | null): void => {
    // No catalogue has a name as long as a step, and it would have to be kept.
    if (requests === 1) firstModel = model && model.length <= STEP_BYTES ? Buffer.from(model) : null;
    else sameModel &&= model !== null && firstModel !== null && sameText(model, firstModel);
  };

  function* check({ bytes, offset, line }: LineBytes): Steps<void> {
    if (++requests > MAX_REQUESTS || faults.length === MAX_FAULTS) return;
    if (bytes === null) return report(line, lineFaults.tooLong(MAX_LINE_BYTES));
    if (requests > reserved) {
      reserved *= 2;
      reserveLines(reserved * LINE_BYTES);
    }
    const isLong = bytes.length > STEP_BYTES;
    const read = isLong ? yield* readInputLineInSteps(bytes, endpoint) : readInputLine(bytes, endpoint);
    const { faults: found, customId, body, model } = read;
    for (const one of found) report(line, one);
    if (customId !== null) {
      const text = bytes.subarray(customId.start, customId.end);
      const key = isLong ? yield* longKeyOf(text) : keyOf(text);
      const first = firstLines.get(key);
      if (first === undefined) firstLines.set(key, line);
      else report(line, lineFaults.duplicate(shown(text), first, line));
      if (faults.length === 0) customIds.push(Buffer.from(text), LF);
    }
    if (faults.length > 0 || body === null) return;
    spans.push(offset + body.start, offset + body.end);
    const item = bytes.subarray(body.start, body.end);
    crcs[requests - 1] = isLong ? yield* crc32InSteps(item) : crc32(item);
    compareModel(model && bytes.subarray(model.start, model.end));
  }

  return {
    *push(chunk) {
      for (const piece of piecesOf(chunk)) {
        for (const line of reader.push(piece)) yield* check(line);
        yield;
      }
    },
    full: () => faults.length === MAX_FAULTS,
    takeCustomIds() {
      const taken = Buffer.concat(customIds);
      customIds = [];
      return taken;
    },
    *end() {
      for (const line of reader.end()) yield* check(line);
      if (requests === 0) faults.push(fileFaults.empty);
      if (requests > MAX_REQUESTS && faults.length < MAX_FAULTS) {
        faults.push(fileFaults.tooMany(requests, MAX_REQUESTS));
      }
      const model = sameModel && firstModel !== null ? cutText(stringStart(firstModel, 0, MAX_MODEL_CHARS)) : null;
      return { faults, items: spans.take(), crcs: crcs.subarray(0, requests), model };
    },
  };
}

function textOf(json: Buffer): string {
  return stringOf(json, { start: 0, end: json.length });
}

function sameText(a: Buffer, b: Buffer): boolean {
  if (a.equals(b)) return true;
  if (a.length > STEP_BYTES) return false; // as long as no name is
  if (a.indexOf(BACKSLASH) < 0 && b.indexOf(BACKSLASH) < 0) return false;
  return textOf(a) === textOf(b);
}

/**
 * The text of a custom_id without its escapes, to tell one from another. Of a long one it is the digest, so that
 * 50,000 of them cost a few megabytes; over UTF-16 where UTF-8 would make all lone surrogates the same.
 */
function keyOf(json: Buffer): string {
  if (json.indexOf(BACKSLASH) < 0) {
    const text = json.subarray(1, -1);
    return text.length <= 64 ? `=${text.toString('utf8')}` : `8${hash('sha256', text, 'base64')}`;
  }
  const text = textOf(json);
  if (!text.isWellFormed()) return `16${hash('sha256', Buffer.from(text, 'utf16le'), 'base64')}`;
  const bytes = Buffer.from(text);
  return bytes.length <= 64 ? `=${text}` : `8${hash('sha256', bytes, 'base64')}`;
}

/** The same for one of any length, which is decoded in pieces. */
function* longKeyOf(json: Buffer): Steps<string> {
  if (json.length <= STEP_BYTES) return keyOf(json);
  const utf8 = createHash('sha256');
  const utf16 = createHash('sha256');
  let isWellFormed = true;
  let half = ''; // a surrogate at the end of a piece, whose other half may come in the next one
  for (const piece of stringPieces(json)) {
    let text = half + piece;
    half = isHighSurrogate(text.charCodeAt(text.length - 1)) ? text.slice(-1) : '';
    text = half === '' ? text : text.slice(0, -1);
    isWellFormed &&= text.isWellFormed();
    utf8.update(text);
    utf16.update(text, 'utf16le');
    yield;
  }
  utf16.update(half, 'utf16le');
  return isWellFormed && half === '' ? `8${utf8.digest('base64')}` : `16${utf16.digest('base64')}`;
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit < 0xdc00;
}

function shown(json: Buffer): string {
  return json.length <= MAX_SHOWN_BYTES ? textOf(json) : json.toString('utf8', 1, MAX_SHOWN_BYTES);
}
