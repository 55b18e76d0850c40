import { open } from 'node:fs/promises';

/** Writes a new file and waits until it is on disk: the floor for the figures of submits. */
export async function writeDurably(path: string, bytes: Buffer): Promise<void> {
  const file = await open(path, 'wx');
  try {
    await file.writeFile(bytes);
    await file.sync();
  } finally {
    await file.close();
  }
}
