import { statfs } from 'node:fs/promises';
import { type PayloadKind, StorageFull } from './payload-store.ts';

/** Space of a file system, in bytes. */
export interface Space {
  /** The bytes that a process without privileges may still write. */
  free: number;
  total: number;
}

/** Free space that is kept for what is worth more. */
export interface SpaceReserve {
  /** Throws StorageFull when `bytes` more of this kind would take from the space that is kept from it. */
  claim(kind: PayloadKind, bytes: number): Promise<void>;
}

const MIB = 1024 * 1024;
const DEFAULT_SHARE = 0.05;
const DEFAULT_MAX_BYTES = 1024 * MIB;

/**
 * How much of the reserve is kept from each kind. Answers may take all of it: an answer that cannot be stored was paid for,
 * and holds up every other one. Results can wait in their segments, and leave half. New work can wait at its caller.
 */
const KEPT: Readonly<Record<PayloadKind, number>> = {
  segment: 0,
  result: 0.5,
  index: 0.5,
  output: 0.5,
  custom_ids: 1,
  input: 1,
  upload: 1,
};

/**
 * The reserve on the file system of `root`; null as `bytes` is 5 % of it, at most 1 GiB. Space that cannot be read refuses
 * nothing: the write itself shows what is wrong.
 */
export function createSpaceReserve(
  root: string,
  bytes: number | null,
  read: (root: string) => Promise<Space> = spaceOf,
): SpaceReserve {
  return {
    async claim(kind, more) {
      if (KEPT[kind] === 0 || bytes === 0) return;
      const space = await read(root).catch(() => null);
      if (space === null) return;
      const kept = KEPT[kind] * (bytes ?? Math.min(DEFAULT_MAX_BYTES, space.total * DEFAULT_SHARE));
      if (space.free - more >= kept) return;
      const [free, reserve] = [space.free, kept].map((n) => Math.round(n / MIB));
      throw new StorageFull(`payload storage has ${free} MiB left, and ${reserve} MiB of it are kept free`);
    },
  };
}

async function spaceOf(root: string): Promise<Space> {
  const { bavail, blocks, bsize } = await statfs(root);
  return { free: bavail * bsize, total: blocks * bsize };
}
