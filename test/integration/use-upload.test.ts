import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { uuidv7 } from '../../lib/base/clock.ts';
import { insertUpload, type UploadKey } from '../../lib/batch/submit/uploads.sql.ts';
import { readUpload, useUpload } from '../../lib/batch/submit/use-upload.ts';
import { createFileStore } from '../../lib/payloads/file-store.ts';
import { PayloadNotFound, type PayloadStore } from '../../lib/payloads/payload-store.ts';
import { createTestDatabase, type TestDatabase } from '../support/postgres.ts';

const BYTES = Buffer.from('{"shape":"openai"}');
const USE = { batchId: uuidv7(), sha256: Buffer.alloc(32, 7), totalItems: 3 };

let database: TestDatabase;
let root: string;
let payloads: PayloadStore;
beforeAll(async () => {
  database = await createTestDatabase();
  root = await mkdtemp(join(tmpdir(), 'relay-upload-'));
  payloads = createFileStore(root);
});
afterAll(async () => {
  await database?.close();
  await rm(root, { recursive: true, force: true });
});

async function announced(): Promise<UploadKey> {
  const key = { id: uuidv7(), owner: 'ann' };
  await insertUpload(database.db, { ...key, bytes: BYTES.length });
  return key;
}

async function arrived(): Promise<UploadKey> {
  const key = await announced();
  await payloads.write({ kind: 'upload', id: key.id }, [BYTES]);
  return key;
}

/** Reads the upload; `before` runs when it was found and its length is right. */
async function readAfter(key: UploadKey, before: () => Promise<void>) {
  return readUpload({ db: database.db, payloads }, key, {
    whenUsed: async (use) => ({ usedBy: use.batchId, totalItems: use.totalItems }),
    async read(ref, bytes) {
      await before();
      return payloads.read(ref, 0, bytes);
    },
  });
}

const useUp = async (key: UploadKey): Promise<void> => {
  await database.db.transaction((tx) => useUpload(tx, key, USE));
  await payloads.delete([{ kind: 'upload', id: key.id }]);
};
const nothing = async () => {};

test('reads an upload that arrived', async () => {
  expect(await readAfter(await arrived(), nothing)).toEqual(BYTES);
});

test('an upload that another call uses up while it is read counts as used', async () => {
  const key = await arrived();
  const again = { usedBy: USE.batchId, totalItems: USE.totalItems };
  expect(await readAfter(key, () => useUp(key))).toEqual(again);
  expect(await readAfter(key, nothing)).toEqual(again);
});

test('an upload whose bytes vanish without a use has not arrived', async () => {
  const key = await arrived();
  const vanish = () => payloads.delete([{ kind: 'upload', id: key.id }]);
  await expect(readAfter(key, vanish)).rejects.toMatchObject({
    code: 'upload_incomplete',
    status: 409,
    param: 'upload_id',
    message: 'upload has not arrived yet',
    cause: expect.any(PayloadNotFound),
  });
});

test('a fault of the reader is passed on, and uses nothing up', async () => {
  const key = await arrived();
  const fault = new Error('not what I wanted');
  const failing = async () => {
    throw fault;
  };
  await expect(readAfter(key, failing)).rejects.toBe(fault);
  expect(await readAfter(key, nothing)).toEqual(BYTES);
});

test('a second use is refused, in the words of what it makes', async () => {
  const key = await arrived();
  await useUp(key);
  const second = (message?: string) => database.db.transaction((tx) => useUpload(tx, key, USE, message));
  const refused = { code: 'upload_used', status: 409, param: 'upload_id' };
  await expect(second()).rejects.toMatchObject({ ...refused, message: 'upload was used by another batch' });
  await expect(second('upload was used before')).rejects.toMatchObject({
    ...refused,
    message: 'upload was used before',
  });
});

test.for([
  ['not an id', 'x'],
  ['unknown', uuidv7()],
] as const)('an upload whose id is %s is not found', async ([, id]) => {
  await expect(readAfter({ id, owner: 'ann' }, nothing)).rejects.toMatchObject({
    code: 'not_found',
    status: 404,
    param: 'upload_id',
    message: 'no such upload',
  });
});
