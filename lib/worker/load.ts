import { checksum } from '../base/turns.ts';
import type { ClaimedItem } from '../model/batch.ts';
import { PayloadNotFound, type PayloadStore } from '../payloads/payload-store.ts';
import { mergeInOrder } from '../payloads/ranges.ts';

/** One ranged read is at most this large, unless a single item is larger. */
const MAX_READ_BYTES = 8 * 1024 * 1024;

export type Loaded = { item: ClaimedItem; body: Buffer } | { item: ClaimedItem; failure: string };

/**
 * Reads the bodies of claimed items with as few ranged reads as possible and checks each against its CRC32. Items come in
 * (batch, idx) order. A read that fails sets the `failure` of its items (a short reason without paths); nothing is thrown.
 */
export async function loadBodies(store: PayloadStore, items: readonly ClaimedItem[]): Promise<Loaded[]> {
  const groups = await Promise.all(groupReads(items).map((group) => readGroup(store, group)));
  return groups.flat();
}

function groupReads(items: readonly ClaimedItem[]): ClaimedItem[][] {
  const reads = mergeInOrder([...items.keys()], {
    offsetOf: (i) => items[i]!.inputOffset,
    lengthOf: (i) => items[i]!.inputLength,
    mayJoin: (first, next) => mayJoin(items[first]!, items[next]!),
    maxBytes: MAX_READ_BYTES,
  });
  return reads.map(({ members }) => members.map((i) => items[i]!));
}

function mayJoin(first: ClaimedItem, next: ClaimedItem): boolean {
  // An item that was unreadable before is read alone, so that its neighbours do not fail with it.
  if (first.loadFailures > 0 || next.loadFailures > 0) return false;
  return first.batch.inputId === next.batch.inputId && next.inputOffset >= first.inputOffset;
}

async function readGroup(store: PayloadStore, group: readonly ClaimedItem[]): Promise<Loaded[]> {
  const first = group[0]!;
  const start = first.inputOffset;
  const end = group.reduce((max, item) => Math.max(max, item.inputOffset + item.inputLength), 0);
  try {
    const bytes = await store.read({ kind: 'input', id: first.batch.inputId }, start, end - start);
    const loaded: Loaded[] = [];
    for (const item of group) {
      const at = item.inputOffset - start;
      const body = bytes.subarray(at, at + item.inputLength);
      const crc = checksum(body);
      const isWhole = (typeof crc === 'number' ? crc : await crc) === item.inputCrc;
      loaded.push(isWhole ? { item, body } : { item, failure: 'checksum mismatch' });
    }
    return loaded;
  } catch (error) {
    const failure = readFailure(error);
    return group.map((item) => ({ item, failure }));
  }
}

/** A short reason for an unreadable payload: not found, or the error's code; never a path or a URL. */
function readFailure(error: unknown): string {
  if (error instanceof PayloadNotFound) return 'not found';
  const { code, name } = error as { code?: unknown; name?: unknown };
  if (typeof code === 'string' && code !== '') return code;
  return typeof name === 'string' && name !== 'Error' ? name : 'read failed';
}
