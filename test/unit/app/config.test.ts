import { describe, expect, test } from 'vitest';
import { type Config, ENVIRONMENT, loadConfig } from '../../../lib/app/config.ts';
import { ConfigError } from '../../../lib/base/errors.ts';

const NAMES = Object.keys(ENVIRONMENT.shape);
const MASTER_KEY = Buffer.alloc(32, 7).toString('base64');

/** Each variable: a good value, where it goes, and the result; values that must be refused. */
const TABLE: Record<string, { good: [string, keyof Config, unknown][]; bad: string[] }> = {
  RELAY_PG_DSN: {
    good: [
      'postgres://a/b',
      'postgresql://u:p%40@[::1]:5432/b?sslmode=require',
      'postgres:///b?host=/run/postgresql',
      'postgres://u@/b?host=/run/postgresql',
      'socket:/run/postgresql?db=b',
      '/run/postgresql b',
    ].map((dsn) => [dsn, 'pgDsn', dsn]),
    bad: ['b', 'a/b', 'host=a dbname=b', 'mysql://a/b', 'postgres://u:secret@[::1', 'postgres://a:port/b'],
  },
  RELAY_PG_DIRECT_DSN: { good: [['postgres://c/d', 'pgDirectDsn', 'postgres://c/d']], bad: ['c'] },
  RELAY_PG_PREPARED: {
    good: [
      ['off', 'pgPrepared', false],
      ['on', 'pgPrepared', true],
      ['auto', 'pgPrepared', true],
    ],
    bad: ['yes', 'ON', 'true'],
  },
  RELAY_PG_POOL: { good: [['200', 'pgPool', 200]], bad: ['0', '201', 'ten', '1.5', '-1', ' 5', '1e2', '0x10'] },
  RELAY_DATA_DIR: { good: [['/d', 'dataDir', '/d']], bad: [] },
  RELAY_HOST: { good: [['0.0.0.0', 'host', '0.0.0.0']], bad: [] },
  RELAY_PORT: {
    good: [
      ['0', 'port', 0],
      ['65535', 'port', 65_535],
    ],
    bad: ['65536', 'http', '-1'],
  },
  RELAY_CONTROL_PORT: {
    good: [
      ['off', 'controlPort', null],
      ['9', 'controlPort', 9],
    ],
    bad: ['Off', 'none', '65536'],
  },
  RELAY_ADMIN_TOKEN: { good: [['t', 'adminToken', 't']], bad: [] },
  RELAY_MASTER_KEY: {
    good: [[MASTER_KEY, 'masterKey', MASTER_KEY]],
    bad: ['short', Buffer.alloc(31).toString('base64'), 'x'.repeat(44)],
  },
  RELAY_CATALOG: { good: [['/c', 'catalogPath', '/c']], bad: [] },
  RELAY_PUBLIC_URL: {
    good: [['https://relay.example', 'publicUrl', 'https://relay.example']],
    bad: ['relay', '/x', 'ftp://x'],
  },
  RELAY_BATCH_MAX_ITEMS: { good: [['1', 'maxItems', 1]], bad: ['0', '100001', 'many'] },
  RELAY_MAX_REQUEST_BYTES: {
    good: [
      ['67108864', 'maxRequestBytes', 67_108_864],
      ['67108865', 'maxRequestBytes', 67_108_864],
      ['100', 'maxRequestBytes', 100],
    ],
    bad: ['0', '-1', '32MiB'],
  },
  RELAY_BODY_MEMORY_MIB: { good: [['64', 'bodyMemoryBytes', 67_108_864]], bad: ['63', '1048577', '1GiB'] },
  RELAY_BATCH_PAYLOAD_DIR: { good: [['/p', 'payloadDir', '/p']], bad: [] },
  RELAY_PAYLOAD_RESERVE_MIB: {
    good: [
      ['0', 'payloadReserveBytes', 0],
      ['2048', 'payloadReserveBytes', 2_147_483_648],
    ],
    bad: ['-1', '5%', '1073741825'],
  },
  RELAY_BATCH_CONCURRENCY: { good: [['0', 'concurrency', 0]], bad: ['4097', '-1'] },
  RELAY_BATCH_ITEM_TIMEOUT_S: { good: [['60', 'itemTimeoutMs', 60_000]], bad: ['0', '86401', '5m'] },
  RELAY_BATCH_FLUSH_MS: { good: [['0', 'flushMs', 0]], bad: ['10001', 'fast'] },
  RELAY_BATCH_ON_WORKER_LOSS: { good: [['discard', 'onWorkerLoss', 'discard']], bad: ['retry'] },
  RELAY_BATCH_RETENTION_DAYS: { good: [['30', 'retentionDays', 30]], bad: ['36501', '-1'] },
  RELAY_USAGE_RETENTION_DAYS: { good: [['90', 'usageRetentionDays', 90]], bad: ['36501'] },
  RELAY_MAX_PENDING_ITEMS_PER_OWNER: { good: [['5', 'maxPendingItemsPerOwner', 5]], bad: ['1000000001'] },
  RELAY_MAX_STREAMS_PER_OWNER: { good: [['1', 'maxStreamsPerOwner', 1]], bad: ['0', '100001'] },
  RELAY_PAYLOAD_STORE: { good: [['file', 'payloadStore', 'file']], bad: ['disk'] },
  RELAY_S3_BUCKET: { good: [['b', 's3Bucket', 'b']], bad: [] },
  RELAY_S3_PREFIX: { good: [['x/', 's3Prefix', 'x/']], bad: [] },
  RELAY_QUEUE: { good: [['postgres', 'queue', 'postgres']], bad: ['redis'] },
  RELAY_SQS_QUEUE_URL: { good: [['http://q', 'sqsQueueUrl', 'http://q']], bad: [] },
  RELAY_SHUTDOWN_DEADLINE_S: { good: [['0', 'shutdownDeadlineMs', 0]], bad: ['3601', '15s'] },
  RELAY_LOG_LEVEL: { good: [['trace', 'logLevel', 'trace']], bad: ['verbose', 'INFO'] },
  RELAY_INSTANCE_ID: { good: [['a-1', 'instanceId', 'a-1']], bad: ['a b', 'é', 'x'.repeat(129)] },
};

describe('the configuration', () => {
  test('has its defaults when nothing is set', () => {
    expect(loadConfig({})).toMatchObject({
      pgDsn: null,
      pgDirectDsn: null,
      pgPrepared: true,
      pgPool: 10,
      dataDir: 'relay-data',
      host: '127.0.0.1',
      port: 8080,
      controlPort: 8081,
      adminToken: null,
      masterKey: null,
      catalogPath: null,
      publicUrl: null,
      maxItems: 50_000,
      maxRequestBytes: 32 * 1024 * 1024,
      bodyMemoryBytes: 512 * 1024 * 1024,
      payloadDir: 'relay-batch-payloads',
      payloadReserveBytes: null,
      concurrency: 8,
      itemTimeoutMs: 300_000,
      flushMs: 10,
      onWorkerLoss: 'rerun',
      retentionDays: 0,
      usageRetentionDays: 0,
      maxPendingItemsPerOwner: 0,
      maxStreamsPerOwner: 100,
      payloadStore: 'file',
      s3Bucket: null,
      s3Prefix: '',
      queue: 'postgres',
      sqsQueueUrl: null,
      shutdownDeadlineMs: 15_000,
      logLevel: 'info',
      instanceId: null,
    });
  });

  test('every variable stands in this table', () => {
    expect(NAMES.filter((name) => !(name in TABLE))).toEqual([]);
  });

  test.each(NAMES)('an empty %s counts as unset', (name) => {
    expect(loadConfig({ [name]: '' })).toEqual(loadConfig({}));
  });

  test.each(Object.entries(TABLE))('%s is taken when it is good, and named when it is not', (name, { good, bad }) => {
    for (const [value, field, expected] of good) expect(loadConfig({ [name]: value })[field]).toEqual(expected);
    for (const value of bad) {
      expect(() => loadConfig({ [name]: value }), value).toThrow(ConfigError);
      expect(() => loadConfig({ [name]: value }), value).toThrow(new RegExp(`^${name} [^\\n]+$`));
    }
  });

  test('unknown variables are none of its business', () => {
    expect(loadConfig({ RELAY_NONE: 'x', HOME: '/' })).toEqual(loadConfig({}));
  });

  test('a bad secret is not shown in the sentence', () => {
    for (const value of ['sk-secret', `${'s'.repeat(50)}`]) {
      expect(() => loadConfig({ RELAY_MASTER_KEY: value })).toThrow(
        /^(?!.*(sk-secret|sssss)).*RELAY_MASTER_KEY.*32 bytes/,
      );
    }
  });

  test('a bad DSN is not shown either', () => {
    expect(() => loadConfig({ RELAY_PG_DSN: 'postgres://u:secret@[::1' })).toThrow(/^RELAY_PG_DSN (?!.*secret)/);
  });

  test('S3 and SQS need to be told where', () => {
    expect(() => loadConfig({ RELAY_PAYLOAD_STORE: 's3' })).toThrow(/^RELAY_S3_BUCKET .*RELAY_PAYLOAD_STORE=s3/);
    expect(() => loadConfig({ RELAY_QUEUE: 'sqs' })).toThrow(/^RELAY_SQS_QUEUE_URL .*RELAY_QUEUE=sqs/);
    expect(loadConfig({ RELAY_PAYLOAD_STORE: 's3', RELAY_S3_BUCKET: 'b' }).flushMs).toBe(200);
    const both = { RELAY_PAYLOAD_STORE: 's3', RELAY_S3_BUCKET: 'b', RELAY_BATCH_FLUSH_MS: '7' };
    expect(loadConfig(both).flushMs).toBe(7);
  });

  test('statements are prepared unless a direct DSN says that the other one is pooled', () => {
    const dsn = 'postgres://p/x';
    expect(loadConfig({ RELAY_PG_DSN: dsn })).toMatchObject({ pgDirectDsn: dsn, pgPrepared: true });
    expect(loadConfig({ RELAY_PG_DSN: dsn, RELAY_PG_DIRECT_DSN: dsn }).pgPrepared).toBe(true);
    const pooled = { RELAY_PG_DSN: dsn, RELAY_PG_DIRECT_DSN: 'postgres://d/x' };
    expect(loadConfig(pooled)).toMatchObject({ pgDirectDsn: 'postgres://d/x', pgPrepared: false });
    expect(loadConfig({ ...pooled, RELAY_PG_PREPARED: 'on' }).pgPrepared).toBe(true);
  });
});
