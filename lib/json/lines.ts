const LF = 0x0a;
const BOM = [0xef, 0xbb, 0xbf];

/**
 * Gets a line that is not blank: its absolute byte offset and length without line end and white space around, and its
 * 1-based number in the file, blank lines counted.
 */
export type OnLine = (offset: number, length: number, line: number) => void;

/** Splits JSONL that arrives in pieces; keeps a few numbers between them and no bytes. */
export interface LineScanner {
  /** Takes the next piece; calls `onLine` for every line that it ends. */
  push(chunk: Uint8Array, onLine: OnLine): void;
  /** The last line may lack its line end. Returns the number of lines, blank ones included, a final empty one not. */
  end(onLine: OnLine): number;
}

/** Space, tab, CR: a line of nothing else is blank, and the CR of a CRLF is white space at the end of its line. */
function isBlank(byte: number): boolean {
  return byte === 0x20 || byte === 0x09 || byte === 0x0d;
}

/**
 * A scanner at the start of a file ("Reading JSONL" in docs/spec/openai-surface.md). Only the byte LF ends a line: CRLF
 * is accepted, U+2028 and U+2029 are ordinary characters. A UTF-8 byte order mark at the start is passed over. Nothing
 * is checked for JSON.
 */
export function lineScanner(): LineScanner {
  let base = 0; // absolute offset of the current chunk
  let line = 1;
  let lineStart = 0; // tells whether a last line without LF exists
  let start = -1; // first and last byte of the line that are not white space; -1 before the first
  let end = 0;
  let mark = 0; // bytes of a byte order mark seen, which may be cut in pieces; 3 when nothing is left to decide

  const passMark = (chunk: Uint8Array): number => {
    let at = 0;
    while (mark < 3 && at < chunk.length) {
      if (chunk[at] !== BOM[mark]) {
        noMark();
        return at;
      }
      at++;
      mark++;
      if (mark === 3) lineStart = 3;
    }
    return at;
  };

  /** The bytes passed belong to the first line after all (U+FE81 starts with EF BA). */
  const noMark = () => {
    if (mark > 0 && mark < 3) {
      start = 0;
      end = mark;
    }
    mark = 3;
  };

  const finish = (onLine: OnLine, next: number) => {
    if (start >= 0) onLine(start, end - start, line);
    start = -1;
    line++;
    lineStart = next;
  };

  return {
    push(chunk, onLine) {
      let at = mark < 3 ? passMark(chunk) : 0;
      while (at < chunk.length) {
        const lf = chunk.indexOf(LF, at);
        const stop = lf < 0 ? chunk.length : lf;
        let first = at;
        while (first < stop && isBlank(chunk[first]!)) first++;
        if (first < stop) {
          let last = stop;
          while (isBlank(chunk[last - 1]!)) last--;
          if (start < 0) start = base + first;
          end = base + last;
        }
        if (lf >= 0) finish(onLine, base + lf + 1);
        at = stop + 1;
      }
      base += chunk.length;
    },
    end(onLine) {
      noMark();
      if (base > lineStart) finish(onLine, base);
      return line - 1;
    },
  };
}
