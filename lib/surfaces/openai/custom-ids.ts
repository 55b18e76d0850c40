import { Buffer } from 'node:buffer';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';
import { MAX_LINE_BYTES } from './validation/input-check.ts';
import { type LineBytes, lineReader } from './validation/line-reader.ts';

/**
 * The custom_ids of a batch in the order of its items, each as the JSON string that was sent. They come in groups, a chunk
 * of the object at a time.
 */
export async function* readCustomIds(
  payloads: Pick<PayloadStore, 'size' | 'stream'>,
  id: string,
): AsyncGenerator<Buffer[]> {
  const ref: PayloadRef = { kind: 'custom_ids', id };
  const reader = lineReader(MAX_LINE_BYTES);
  let group: Buffer[] = [];
  const take = (lines: Iterable<LineBytes>) => {
    for (const { bytes } of lines) {
      if (bytes === null) throw new PayloadNotFound('a custom_id that could not have been written');
      group.push(Buffer.from(bytes));
    }
  };
  for await (const chunk of payloads.stream(ref, 0, await payloads.size(ref))) {
    take(reader.push(chunk));
    yield group;
    group = [];
  }
  take(reader.end());
  yield group;
}
