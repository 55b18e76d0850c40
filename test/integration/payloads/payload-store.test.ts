import { randomBytes, randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../../lib/payloads/payload-store.ts';
import { createS3Store } from '../../../lib/payloads/s3-store.ts';
import { type AwsServer, createBucket, hasMoto, startFaux, startMoto, TEST_CLIENT } from '../../support/aws.ts';
import { hasDocker, LOCALSTACK_HOOK_MS, startLocalStack } from '../../support/localstack.ts';

const MIB = 1024 * 1024;
const HOUR = 3_600_000;

interface Opened {
  store: PayloadStore;
  /** A second view of the same objects; with another prefix for `other`. */
  again(): PayloadStore;
  close(): Promise<void>;
}

async function openFiles(): Promise<Opened> {
  const directory = await mkdtemp(join(tmpdir(), 'relay-store-'));
  const again = () => createFileStore(directory);
  return { store: again(), again, close: () => rm(directory, { recursive: true, force: true }) };
}

const openS3 = (start: () => Promise<AwsServer>) => async (): Promise<Opened> => {
  const server = await start();
  await createBucket(server.endpoint, 'payloads');
  const again = () =>
    createS3Store({ bucket: 'payloads', prefix: 'some/where', endpoint: server.endpoint, client: TEST_CLIENT });
  const store = again();
  return {
    store,
    again,
    async close() {
      await store.close();
      await server.stop();
    },
  };
};

const STORES: [string, boolean, () => Promise<Opened>][] = [
  ['files', true, openFiles],
  ['S3 (fauxqs)', true, openS3(startFaux)],
  ['S3 (moto_server, when it is on the PATH)', hasMoto(), openS3(startMoto)],
  ['S3 (LocalStack, when Docker answers)', await hasDocker(), openS3(startLocalStack)],
];

for (const [name, present, open] of STORES) {
  describe.skipIf(!present)(`the payload store on ${name}`, () => {
    let opened: Opened;
    let store: PayloadStore;
    beforeAll(async () => {
      opened = await open();
      store = opened.store;
    }, LOCALSTACK_HOOK_MS);
    afterAll(() => opened?.close());

    const ref = (kind: PayloadRef['kind'] = 'segment', at = Date.now()): PayloadRef => ({ kind, id: uuidv7(at) });
    const collect = async (chunks: AsyncIterable<Uint8Array>) => {
      const all: Uint8Array[] = [];
      for await (const chunk of chunks) all.push(chunk);
      return Buffer.concat(all);
    };

    test('gives back the pieces of a write as one object', async () => {
      const one = ref();
      await store.write(one, [Buffer.from('ab'), Buffer.from(''), Buffer.from('cdef')]);
      expect(await store.size(one)).toBe(6);
      expect((await store.read(one, 0, 6)).toString()).toBe('abcdef');
      expect((await store.read(one, 1, 3)).toString()).toBe('bcd');
      expect((await opened.again().read(one, 5, 1)).toString()).toBe('f');
    });

    test('reads into memory that it is given, and leaves what is beside it', async () => {
      const one = ref();
      await store.write(one, [Buffer.from('abcdef')]);
      const memory = Buffer.alloc(8, '.');
      const read = await store.read(one, 1, 4, memory.subarray(2, 6));
      expect(read.toString()).toBe('bcde');
      expect(['..bcde..', '........']).toContain(memory.toString()); // a store may use memory of its own
      await expect(store.read(one, 3, 8, memory)).rejects.toThrow('shorter than expected');
      await expect(store.read(ref(), 0, 8, memory)).rejects.toThrow(PayloadNotFound);
    });

    test('keeps every byte value, also in an empty object', async () => {
      const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
      const [one, empty] = [ref('input'), ref('input')];
      await store.write(one, [bytes]);
      await store.write(empty, []);
      expect(await store.read(one, 0, 256)).toEqual(bytes);
      expect(await store.size(empty)).toBe(0);
      expect(await collect(store.stream(empty, 0, 0))).toEqual(Buffer.alloc(0));
    });

    test.each([8 * MIB, 8 * MIB + 1, 21 * MIB])('writes %i bytes, in one piece or many', async (size) => {
      const bytes = randomBytes(size);
      const [whole, cut] = [ref(), ref()];
      await store.write(whole, [bytes]);
      await store.write(
        cut,
        Array.from({ length: 2000 }, (_, i) => bytes.subarray((i * size) / 2000, ((i + 1) * size) / 2000)),
      );
      for (const one of [whole, cut]) {
        expect(await store.size(one)).toBe(size);
        expect((await store.read(one, 0, size)).equals(bytes)).toBe(true);
        expect((await store.read(one, size - 100, 100)).equals(bytes.subarray(size - 100))).toBe(true);
      }
    });

    test.each([0, 1, 300_000, 20 * MIB])('writes a stream of %i bytes and says its length', async (size) => {
      const bytes = randomBytes(size);
      const one = ref('result');
      async function* source() {
        for (let at = 0; at < size; at += 70_001) yield bytes.subarray(at, at + 70_001);
      }
      expect(await store.writeStream(one, source())).toBe(size);
      expect((await collect(store.stream(one, 0, size))).equals(bytes)).toBe(true);
    });

    test('streams a range', async () => {
      const bytes = randomBytes(3 * MIB);
      const one = ref();
      await store.write(one, [bytes]);
      expect((await collect(store.stream(one, 5, 2 * MIB))).equals(bytes.subarray(5, 2 * MIB + 5))).toBe(true);
    });

    test('lets a reader leave a stream early', async () => {
      const one = ref();
      await store.write(one, [randomBytes(9 * MIB)]);
      for (let i = 0; i < 200; i++) for await (const _ of store.stream(one, 0, 9 * MIB)) break;
      expect(await store.size(one)).toBe(9 * MIB);
    });

    test('throws the error of a source that breaks, and leaves no object', async () => {
      for (const before of [10, 10 * MIB]) {
        const one = ref('result');
        async function* source() {
          yield Buffer.alloc(before);
          throw new Error('the source broke');
        }
        await expect(store.writeStream(one, source())).rejects.toThrow('the source broke');
        await expect(store.size(one)).rejects.toThrow(PayloadNotFound);
      }
    });

    test('tells an object that is not there from one that is too short', async () => {
      const none = ref();
      await expect(store.read(none, 0, 1)).rejects.toThrow(PayloadNotFound);
      await expect(store.size(none)).rejects.toThrow(PayloadNotFound);
      await expect(collect(store.stream(none, 0, 1))).rejects.toThrow(PayloadNotFound);
      const short = ref();
      await store.write(short, [Buffer.from('abc')]);
      for (const [offset, length] of [
        [0, 4],
        [3, 1],
        [9, 1],
      ] as const) {
        await expect(store.read(short, offset, length)).rejects.toThrow('shorter than expected');
        await expect(collect(store.stream(short, offset, length))).rejects.toThrow('shorter than expected');
      }
    });

    test('deletes by the thousand, and takes what is not there for deleted', async () => {
      const made = Array.from({ length: 5 }, () => ref());
      for (const one of made) await store.write(one, [Buffer.from('x')]);
      const missing = Array.from({ length: 1200 }, () => ref());
      await store.delete([...made.slice(0, 2), ...missing, ...made.slice(2, 4)]);
      await store.delete([]);
      for (const one of made.slice(0, 4)) await expect(store.size(one)).rejects.toThrow(PayloadNotFound);
      expect(await store.size(made[4]!)).toBe(1);
    });

    test('lists what is older than a moment, oldest first, one kind at a time', async () => {
      const base = Date.parse('2026-01-02T03:04:05Z');
      const old = [0, 1, HOUR, 30 * HOUR].map((later) => ref('index', base + later));
      const young = [ref('index', base + 31 * HOUR), ref('index', base + 80 * HOUR)];
      const other = ref('input', base);
      for (const one of [...young, ...old.toReversed(), other]) await store.write(one, [Buffer.from('x')]);
      const listed: PayloadRef[] = [];
      for await (const one of store.list('index', base + 31 * HOUR)) listed.push(one);
      expect(listed).toEqual(old);
      await store.removeStale('index', base + 90 * HOUR);
      expect(await store.size(young[1]!)).toBe(1);
    });

    test('lists more than one page', async () => {
      const base = Date.parse('2025-05-05T00:00:00Z');
      const many = Array.from({ length: 1005 }, (_, i) => ref('input', base + i * 1000));
      for (let at = 0; at < many.length; at += 100) {
        await Promise.all(many.slice(at, at + 100).map((one) => store.write(one, [Buffer.from('x')])));
      }
      const listed: PayloadRef[] = [];
      for await (const one of store.list('input', base + 2_000_000)) listed.push(one);
      expect(listed).toEqual(many);
    });

    test('has a marker once it was written', async () => {
      expect(await store.readMarker()).toBeNull();
      const id = randomUUID();
      await store.writeMarker(id);
      expect(await store.readMarker()).toBe(id);
      expect(await opened.again().readMarker()).toBe(id);
    });
  });
}
