import { Buffer } from 'node:buffer';
import { atOnce, piecesOf, type Steps } from '../../base/turns.ts';
import type { FinalItem } from '../../batch/results/final-items.ts';
import { errorDocument } from '../../json/members.ts';
import { onOneLine } from '../../json/one-line.ts';
import { bomLength } from '../../json/scan.ts';
import { isUtf8InSteps } from '../../json/utf8.ts';
import { hexOfUuid } from '../../model/public-id.ts';
import { requestId } from '../../usage/query.ts';

/** One line of a result file, in pieces; its last byte is the line end. */
export interface ResultLine {
  file: 'output' | 'error';
  pieces: Buffer[];
  /** The batch's window closed before this item was done. */
  expired: boolean;
}

const PREFIX = 'batch item: ';
const EXPIRED = 'batch item: expired';
/**
 * The text of an item that an upstream refused ("Item failure texts" in docs/spec/gateway-rules.md); it outlives the
 * usage event, which has the status too.
 */
const REFUSED = /^batch item: upstream status (\d{3})$/;
const TAIL = Buffer.from('},"error":null}\n');

/**
 * The line of an item ("Result files" in docs/spec/openai-surface.md): `customId` is the JSON string as it was sent. A
 * completed item goes to the output file, any other to the error file: with the answer of an upstream that refused it,
 * else with the reason why no answer exists. An answer of a 2xx status that is not a response has a code of ours and
 * not its status, which would read as success.
 */
export function* resultLineInSteps(batchId: string, customId: Buffer, outcome: FinalItem): Steps<ResultLine> {
  const { idx, state, status, error } = outcome;
  const id = `batch_req_${hexOfUuid(batchId)}${idx.toString(16).padStart(8, '0')}`;
  const head = [Buffer.from(`{"id":"${id}","custom_id":`), customId];
  const answered = (statusCode: number) =>
    Buffer.from(
      `,"response":{"status_code":${statusCode},"request_id":${JSON.stringify(requestId(batchId, idx))},"body":`,
    );
  const expired = error === EXPIRED;
  if (state === 'completed') {
    return { file: 'output', pieces: [...head, answered(status ?? 200), yield* oneLine(outcome.body!), TAIL], expired };
  }
  const refused = REFUSED.exec(error ?? '');
  if (refused) {
    return {
      file: 'error',
      pieces: [...head, answered(Number(refused[1])), ...(yield* errorBody(outcome)), TAIL],
      expired,
    };
  }
  const reason = escaped(JSON.stringify(reasonOf(outcome)));
  return { file: 'error', pieces: [...head, Buffer.from(`,"response":null,"error":${reason}}\n`)], expired };
}

/** The same in one go, for an answer of few steps. */
export function resultLine(batchId: string, customId: Buffer, outcome: FinalItem): ResultLine {
  return atOnce(resultLineInSteps(batchId, customId, outcome));
}

/** A JSON document on one line, without a byte order mark. */
function oneLine(json: Buffer): Steps<Buffer> {
  return onOneLine(json.subarray(bomLength(json)));
}

/** The JSON of an error body, taken out of a list of one; null for anything else. */
function* errorJson(body: Buffer): Steps<Buffer | null> {
  if (!(yield* isUtf8InSteps(body))) return null;
  const span = yield* errorDocument(body, bomLength(body));
  return span && (yield* onOneLine(body.subarray(span.start, span.end)));
}

/** JSON as it came; anything else as the text of an error; our own text where nothing was kept. */
function* errorBody({ body, error }: FinalItem): Steps<Buffer[]> {
  const json = body && (yield* errorJson(body));
  if (json) return [json];
  if (body === null || body.length === 0) {
    return [Buffer.from(escaped(JSON.stringify({ error: { message: withoutPrefix(error) } })))];
  }
  const pieces = [Buffer.from('{"error":{"message":"')];
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  const add = (text: string) => pieces.push(Buffer.from(escaped(JSON.stringify(text)).slice(1, -1)));
  for (const piece of piecesOf(body)) {
    add(decoder.decode(piece, { stream: true }));
    yield;
  }
  add(decoder.decode());
  pieces.push(Buffer.from('"}}'));
  return pieces;
}

function reasonOf({ state, errorKind, error }: FinalItem): { code: string; message: string } {
  if (state === 'cancelled') {
    return { code: 'batch_cancelled', message: 'This request was not executed because the batch was cancelled.' };
  }
  if (error === EXPIRED) {
    const message = 'This request could not be executed before the completion window expired.';
    return { code: 'batch_expired', message };
  }
  return {
    code: errorKind === 'timeout' ? 'request_timeout' : (errorKind ?? 'internal'),
    message: withoutPrefix(error),
  };
}

function withoutPrefix(error: string | null): string {
  return error?.startsWith(PREFIX) ? error.slice(PREFIX.length) : (error ?? '');
}

/** U+2028 and U+2029 end a line for some readers of JSONL; in text that we write ourselves they are escaped. */
function escaped(json: string): string {
  return json.replaceAll('\u2028', '\\u2028').replaceAll('\u2029', '\\u2029');
}
