import { cutText } from '../../../base/errors.ts';
import { MAX_MEMBERS } from '../../../json/members.ts';

/**
 * A fault of an input file; `errors.data` of a failed batch holds these ("Validation of the input file" in
 * docs/spec/openai-surface.md).
 */
export interface Fault {
  code: FaultCode;
  message: string;
  /** The member of the line, or of the batch, that it is about. */
  param: string | null;
  /** 1-based number of the line in the file, blank lines counted; null when it is about the file. */
  line: number | null;
}

export type FaultCode =
  | 'invalid_json_line'
  | 'duplicate_custom_id'
  | 'mismatched_url'
  | 'missing_required_parameter'
  | 'invalid_method'
  | 'empty_file'
  | 'too_many_tasks'
  | 'invalid_custom_id'
  | 'stream_not_supported'
  | 'background_not_supported'
  | 'too_many_pending'
  | 'input_file_unreadable';

/** A fault of one line, before its number is known to it. */
export type LineFault = Omit<Fault, 'line'>;

/** More faults than this are not reported ("Validation of the input file" in docs/spec/openai-surface.md). */
export const MAX_FAULTS = 1000;

/** `endpoint` is that of the batch. Texts follow OpenAI's own, which callers search for. */
export const lineFaults = {
  notJson: fault('invalid_json_line', 'This line is not parseable as valid JSON.', null),
  notUtf8: fault('invalid_json_line', 'This line is not valid UTF-8.', null),
  notObject: fault('invalid_json_line', 'This line is not a JSON object.', null),
  tooManyMembers: fault('invalid_json_line', `This line has more than ${MAX_MEMBERS} members.`, null),
  bodyNotObject: fault('invalid_json_line', "Invalid type for 'body': expected an object.", 'body'),
  customIdNotString: fault('invalid_custom_id', "Invalid type for 'custom_id': expected a string.", 'custom_id'),
  method: fault('invalid_method', "Invalid method: only 'POST' is supported in a batch.", 'method'),
  stream: fault('stream_not_supported', 'Streaming is not supported in the Batch API.', 'body.stream'),
  background: fault('background_not_supported', 'background must not be true', 'body.background'),
  missing: (param: string) => fault('missing_required_parameter', `Missing required parameter: '${param}'.`, param),
  url: (endpoint: string) =>
    fault(
      'mismatched_url',
      `The URL provided for this request does not match the batch endpoint '${endpoint}'.`,
      'url',
    ),
  tooLong: (maxBytes: number) =>
    fault('invalid_json_line', `This line is longer than ${maxBytes} bytes, the limit for one request.`, null),
  duplicate: (customId: string, first: number, second: number) =>
    fault(
      'duplicate_custom_id',
      `The custom_id '${cutText(customId)}' of line ${second} is a duplicate of that of line ${first}. The custom_id must be unique for each request in a batch.`,
      'custom_id',
    ),
};

/** Faults of the whole file. */
export const fileFaults = {
  empty: about('empty_file', 'The input file is empty: a batch must have at least one request.'),
  tooMany: (sent: number, limit: number) =>
    about('too_many_tasks', `The input file has ${sent} requests: a batch can have at most ${limit}.`),
  tooManyPending: (message: string): Fault => ({ code: 'too_many_pending', message, param: null, line: null }),
  unreadable: about('input_file_unreadable', 'The input file could not be read.'),
};

function fault(code: FaultCode, message: string, param: string | null): LineFault {
  return { code, message, param };
}

function about(code: FaultCode, message: string): Fault {
  return { code, message, param: 'input_file_id', line: null };
}
