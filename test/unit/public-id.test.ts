import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { publicIds, uuidOfHex } from '../../lib/model/public-id.ts';
import { messageBatchId, parseMessageBatchId } from '../../lib/surfaces/anthropic/message-batch.ts';
import { fileIdOf, uuidOfFileId } from '../../lib/surfaces/files/file-object.ts';
import { parseBatchId, publicBatchId } from '../../lib/surfaces/openai/find-batch.ts';

const UUID = '0194bd2a-89ab-7cde-8f01-23456789abcd';
const HEX = '0194bd2a89ab7cde8f0123456789abcd';

describe.for([
  ['a file', 'file-', fileIdOf, uuidOfFileId],
  ['a batch of the OpenAI surface', 'batch_', publicBatchId, parseBatchId],
  ['a message batch', 'msgbatch_01', messageBatchId, parseMessageBatchId],
] as const)('the public id of %s', ([_, prefix, of, parse]) => {
  test('is its prefix and the hex digits of its UUID', () => {
    expect(of(UUID)).toBe(prefix + HEX);
    expect(parse(prefix + HEX)).toBe(UUID);
  });

  test.for([
    ['empty', ''],
    ['without the prefix', HEX],
    ['the UUID itself', prefix + UUID],
    ['another prefix', `files-${HEX}`],
    ['a digit short', (prefix + HEX).slice(0, -1)],
    ['a digit long', `${prefix}${HEX}0`],
    ['a line long', `${prefix}${HEX}\n`],
    ['in capitals', prefix + HEX.toUpperCase()],
    ['not of hex digits', `${prefix}${HEX.slice(0, -1)}g`],
  ] as const)('is not recognized when it is %s', ([, text]) => {
    expect(parse(text)).toBeNull();
  });
});

test('every UUID comes back from its public id', () => {
  const ids = publicIds('x_');
  fc.assert(
    fc.property(fc.uuid(), (uuid) => {
      expect(ids.parse(ids.of(uuid))).toBe(uuid);
    }),
  );
});

test('of more digits than a UUID has, the first 32 count', () => {
  expect(uuidOfHex(`${HEX}ffff`)).toBe(UUID);
});
