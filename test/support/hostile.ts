import { Buffer } from 'node:buffer';

/** Fills `bytes` with `part` again and again, between `start` and `end`; what is over is white space. */
function filled(bytes: number, start: string, part: string, end: string): Buffer {
  const whole = Buffer.alloc(bytes, ' ');
  const unit = Buffer.from(part);
  const from = whole.write(start);
  const count = Math.max(0, Math.floor((bytes - from - Buffer.byteLength(end)) / unit.length));
  whole.fill(unit, from, from + count * unit.length);
  whole.write(end, from + count * unit.length);
  return whole;
}

/** Something that is opened as often as it is closed. */
function nested(bytes: number, start: string, open: string, inner: string, close: string): Buffer {
  const depth = Math.floor((bytes - start.length - inner.length - 1) / (open.length + close.length));
  const text = start + open.repeat(depth) + inner + close.repeat(depth);
  return Buffer.concat([Buffer.from(text), Buffer.alloc(bytes - text.length - 1, ' '), Buffer.from('}')]);
}

/**
 * JSON objects of about so many bytes that cost a reader the most, by what is bad about them. The last two are cut off. All
 * members are such that somebody looks for them, or are thrown away.
 */
export const HOSTILE: Readonly<Record<string, (bytes: number) => Buffer>> = {
  'members with an escaped key': (n) => filled(n, '{', '"\\r":1,', '"a":1}'),
  'members whose key is nearly a wanted one': (n) => filled(n, '{', '"\\u006d\\u006f\\u0064\\u0065x":1,', '"a":1}'),
  'members with an empty key': (n) => filled(n, '{', '"":1,', '"a":1}'),
  'duplicates of model': (n) => filled(n, '{', '"model":1,', '"a":1}'),
  'duplicates of usage': (n) => filled(n, '{', '"usage":1,', '"a":1}'),
  'arrays in arrays': (n) => nested(n, '{"a":', '[', '', ']'),
  'objects in objects': (n) => nested(n, '{"a":', '{"":', '1', '}'),
  'empty arrays': (n) => filled(n, '{"a":[', '[],', '1]}'),
  'a string of escapes': (n) => filled(n, '{"a":"', '\\u0041', '"}'),
  'a string of backslashes': (n) => filled(n, '{"model":"', '\\\\', '"}'),
  'a key of escapes': (n) => filled(n, '{"', '\\u0041', '":1}'),
  'a string of text that is not ASCII': (n) => filled(n, '{"a":"', 'é日', '"}'),
  'a long string': (n) => filled(n, '{"model":"', 'x', '"}'),
  'a long number': (n) => filled(n, '{"a":', '1', '}'),
  'a list of numbers': (n) => filled(n, '{"a":[', '1e5,', '1]}'),
  'choices without number': (n) => filled(n, '{"choices":[', '{"finish_reason":"x"},', '{}]}'),
  'choices that fail': (n) => filled(n, '{"choices":[', '{"error":1},', '{}]}'),
  'vectors without number': (n) => filled(n, '{"data":[', '{"embedding":[ ]},', '{}]}'),
  'a vector of white space': (n) => filled(n, '{"data":[{"embedding":[', ' ', ']}]}'),
  'an error with a long message': (n) => filled(n, '{"error":{"message":"', '\\u0041', '"}}'),
  'an error with members': (n) => filled(n, '{"error":{', '"code":1,', '"a":1}}'),
  'inputs without number': (n) => filled(n, '{"input":[', '"a",', '"b"]}'),
  'white space': (n) => filled(n, '{', ' ', '"a":1}'),
  'line ends': (n) => filled(n, '{', '\n', '"a":1}'),
  'a string that does not end': (n) => filled(n, '{"a":"', 'xyz\\n', ''),
  'arrays that do not end': (n) => filled(n, '{"a":', '[', ''),
};
