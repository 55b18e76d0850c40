import { z } from 'zod';
import { ConfigError } from '../base/errors.ts';

const int = (min: number, max: number) =>
  z
    .string()
    .regex(/^\d{1,15}$/, 'a whole number')
    .transform(Number)
    .pipe(z.number().min(min, `at least ${min}`).max(max, `at most ${max}`));
/** A connection string as pg reads them: a URL, whose host may be left out, or the path of a socket. Never echoed. */
const dsn = () =>
  z
    .string()
    .refine(
      (text) =>
        /^(socket:\/|\/)./.test(text) || (/^postgres(ql)?:\/\//.test(text) && URL.canParse(text.replace('@/', '@x/'))),
      'it must be a postgres:// URL',
    );
const MIB = 1024 * 1024;
/**
 * "Limits of a submit" in docs/spec/native-api.md: a native body is refused over the smaller of this and
 * RELAY_MAX_REQUEST_BYTES.
 */
const MAX_REQUEST_BYTES = 64 * MIB;

/**
 * Every variable the service reads, with its default. `docs/configuration.md` is generated from it: `meta` holds what
 * a type cannot say.
 */
export const ENVIRONMENT = z.object({
  RELAY_PG_DSN: dsn().optional().meta({
    unit: 'DSN',
    about: 'The Postgres to use. If unset, the service starts an embedded one in `RELAY_DATA_DIR`.',
  }),
  RELAY_PG_DIRECT_DSN: dsn().optional().meta({
    unit: 'DSN',
    about: 'Connection for LISTEN and migrations. Default: `RELAY_PG_DSN`. Set it behind a transaction-mode pooler.',
  }),
  RELAY_PG_PREPARED: z.enum(['auto', 'on', 'off']).default('auto').meta({
    about:
      'Use of named prepared statements. `auto`: on, unless `RELAY_PG_DIRECT_DSN` names another server than `RELAY_PG_DSN`.',
  }),
  RELAY_PG_POOL: int(1, 200)
    .default(10)
    .meta({ unit: 'connections', about: 'Size of the connection pool of one replica.' }),
  RELAY_DATA_DIR: z
    .string()
    .min(1)
    .default('relay-data')
    .meta({ unit: 'path', about: 'Directory of the embedded Postgres, the generated secrets and the instance id.' }),
  RELAY_HOST: z
    .string()
    .min(1)
    .default('127.0.0.1')
    .meta({ about: 'Address that both ports listen on. The container image sets 0.0.0.0.' }),
  RELAY_PORT: int(0, 65535).default(8080).meta({ about: 'Inference port. 0 selects a free one.' }),
  RELAY_CONTROL_PORT: z
    .union([z.literal('off'), int(0, 65535)], 'off, or a whole number from 0 to 65535')
    .default(8081)
    .meta({ about: 'Control port, or `off`.' }),
  RELAY_ADMIN_TOKEN: z.string().min(1).optional().meta({
    secret: true,
    about: 'Bearer token of the control API. Embedded mode generates it once, in the data dir.',
  }),
  RELAY_MASTER_KEY: z.string().min(1).optional().meta({
    secret: true,
    unit: '32 bytes, base64',
    about: 'Key that encrypts stored secrets. Embedded mode generates it once, in the data dir.',
  }),
  RELAY_CATALOG: z
    .string()
    .min(1)
    .optional()
    .meta({ unit: 'path', about: 'YAML file or directory that every start applies.' }),
  RELAY_PUBLIC_URL: z
    .url({ protocol: /^https?$/, error: 'it must be an http or https URL' })
    .optional()
    .meta({
      unit: 'URL',
      about:
        'Address that callers use for the inference port. `upload_url` and `results_url` start with it. Default: the host of the call; for `results_url` the address that the service listens on.',
    }),
  RELAY_BATCH_MAX_ITEMS: int(1, 100_000)
    .default(50_000)
    .meta({ unit: 'items', about: 'Maximum number of items of one native batch.' }),
  RELAY_MAX_REQUEST_BYTES: int(1, Number.MAX_SAFE_INTEGER)
    .default(32 * MIB)
    .meta({ unit: 'bytes', about: 'Largest body of a native submit. A value above 64 MiB counts as 64 MiB.' }),
  RELAY_BODY_MEMORY_MIB: int(64, 1_048_576)
    .default(512)
    .meta({ unit: 'MiB', about: 'What all request bodies in memory of one replica may take. Above it: 503.' }),
  RELAY_BATCH_PAYLOAD_DIR: z
    .string()
    .min(1)
    .default('relay-batch-payloads')
    .meta({ unit: 'path', about: 'Payload directory of the file store. All replicas share it.' }),
  RELAY_PAYLOAD_RESERVE_MIB: int(0, 1_073_741_824).optional().meta({
    unit: 'MiB',
    about:
      'Free space of the payload directory that is kept for answers. New bodies are refused below it. 0: nothing is kept. Default: 5 % of the file system, at most 1024.',
  }),
  RELAY_BATCH_CONCURRENCY: int(0, 4096)
    .default(8)
    .meta({ unit: 'slots', about: 'Items that one replica runs at once. With 0 this replica runs no items.' }),
  RELAY_BATCH_ITEM_TIMEOUT_S: int(1, 86_400)
    .default(300)
    .meta({ unit: 's', about: 'Time limit of one item, all upstream attempts included.' }),
  RELAY_BATCH_FLUSH_MS: int(0, 10_000)
    .optional()
    .meta({ unit: 'ms', about: 'Time that a group commit collects outcomes. Default: 10 with files, 200 with S3.' }),
  RELAY_BATCH_ON_WORKER_LOSS: z.enum(['rerun', 'discard']).default('rerun').meta({
    about: 'What happens to the items of a lost worker. `discard` never calls an upstream a second time for them.',
  }),
  RELAY_BATCH_RETENTION_DAYS: int(0, 36_500)
    .default(0)
    .meta({ unit: 'days', about: 'Finished batches are deleted after this time. 0 keeps them.' }),
  RELAY_USAGE_RETENTION_DAYS: int(0, 36_500)
    .default(0)
    .meta({ unit: 'days', about: 'Usage partitions are dropped after this time. 0 keeps them.' }),
  RELAY_MAX_PENDING_ITEMS_PER_OWNER: int(0, 1_000_000_000)
    .default(0)
    .meta({ unit: 'items', about: 'Maximum number of unfinished items of one owner. 0: no limit.' }),
  RELAY_MAX_STREAMS_PER_OWNER: int(1, 100_000)
    .default(100)
    .meta({ unit: 'streams', about: 'Results and file contents that one owner may read from one replica at once.' }),
  RELAY_PAYLOAD_STORE: z.enum(['file', 's3']).default('file').meta({ about: 'Store of the payloads.' }),
  RELAY_S3_BUCKET: z.string().min(1).optional().meta({ about: 'Bucket of the S3 payload store.' }),
  RELAY_S3_PREFIX: z.string().default('').meta({ about: 'Prefix of every key in the bucket.' }),
  RELAY_QUEUE: z.enum(['postgres', 'sqs']).default('postgres').meta({ about: 'Mechanism that wakes the workers.' }),
  RELAY_SQS_QUEUE_URL: z.string().min(1).optional().meta({ unit: 'URL', about: 'Queue of the SQS wake-ups.' }),
  RELAY_SHUTDOWN_DEADLINE_S: int(0, 3600)
    .default(15)
    .meta({ unit: 's', about: 'Time that running items have to finish after SIGTERM.' }),
  RELAY_LOG_LEVEL: z
    .enum(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'])
    .default('info')
    .meta({ about: 'Level of the JSON logs on standard output.' }),
  RELAY_INSTANCE_ID: z
    .string()
    .regex(/^[\x21-\x7e]{1,128}$/, '1-128 printable ASCII characters')
    .optional()
    .meta({ about: 'Stable name of this replica. Default: a generated one, kept in the data dir.' }),
});

type Environment = z.infer<typeof ENVIRONMENT>;

/** Validated configuration; units are in the names. */
export interface Config {
  pgDsn: string | null;
  pgDirectDsn: string | null;
  pgPrepared: boolean;
  pgPool: number;
  dataDir: string;
  host: string;
  port: number;
  controlPort: number | null;
  adminToken: string | null;
  masterKey: string | null;
  catalogPath: string | null;
  publicUrl: string | null;
  maxItems: number;
  maxRequestBytes: number;
  bodyMemoryBytes: number;
  payloadDir: string;
  /** Null: what the file store keeps by default. */
  payloadReserveBytes: number | null;
  concurrency: number;
  itemTimeoutMs: number;
  flushMs: number;
  onWorkerLoss: 'rerun' | 'discard';
  retentionDays: number;
  usageRetentionDays: number;
  maxPendingItemsPerOwner: number;
  maxStreamsPerOwner: number;
  payloadStore: 'file' | 's3';
  s3Bucket: string | null;
  s3Prefix: string;
  queue: 'postgres' | 'sqs';
  sqsQueueUrl: string | null;
  shutdownDeadlineMs: number;
  logLevel: string;
  instanceId: string | null;
}

/**
 * Reads and checks the environment. An empty value counts as unset. Throws ConfigError with one sentence that names the
 * variable; a value is never silently replaced by the default.
 */
export function loadConfig(env: Record<string, string | undefined>): Config {
  const given: Record<string, string> = {};
  for (const name of Object.keys(ENVIRONMENT.shape)) {
    const value = env[name];
    if (value !== undefined && value !== '') given[name] = value;
  }
  const parsed = ENVIRONMENT.safeParse(given);
  if (!parsed.success) {
    const issue = parsed.error.issues[0]!;
    throw new ConfigError(`${String(issue.path[0])} is not valid: ${issue.message}`);
  }
  const e: Environment = parsed.data;
  if (e.RELAY_MASTER_KEY && !isMasterKey(e.RELAY_MASTER_KEY)) {
    throw new ConfigError('RELAY_MASTER_KEY is not valid: it must be 32 bytes in base64');
  }
  if (e.RELAY_PAYLOAD_STORE === 's3' && !e.RELAY_S3_BUCKET) {
    throw new ConfigError('RELAY_S3_BUCKET is missing: RELAY_PAYLOAD_STORE=s3 needs it');
  }
  if (e.RELAY_QUEUE === 'sqs' && !e.RELAY_SQS_QUEUE_URL) {
    throw new ConfigError('RELAY_SQS_QUEUE_URL is missing: RELAY_QUEUE=sqs needs it');
  }
  const pooled = e.RELAY_PG_DIRECT_DSN !== undefined && e.RELAY_PG_DIRECT_DSN !== e.RELAY_PG_DSN;
  return {
    pgDsn: e.RELAY_PG_DSN ?? null,
    pgDirectDsn: e.RELAY_PG_DIRECT_DSN ?? e.RELAY_PG_DSN ?? null,
    pgPrepared: e.RELAY_PG_PREPARED === 'on' || (e.RELAY_PG_PREPARED === 'auto' && !pooled),
    pgPool: e.RELAY_PG_POOL,
    dataDir: e.RELAY_DATA_DIR,
    host: e.RELAY_HOST,
    port: e.RELAY_PORT,
    controlPort: e.RELAY_CONTROL_PORT === 'off' ? null : e.RELAY_CONTROL_PORT,
    adminToken: e.RELAY_ADMIN_TOKEN ?? null,
    masterKey: e.RELAY_MASTER_KEY ?? null,
    catalogPath: e.RELAY_CATALOG ?? null,
    publicUrl: e.RELAY_PUBLIC_URL ?? null,
    maxItems: e.RELAY_BATCH_MAX_ITEMS,
    maxRequestBytes: Math.min(e.RELAY_MAX_REQUEST_BYTES, MAX_REQUEST_BYTES),
    bodyMemoryBytes: e.RELAY_BODY_MEMORY_MIB * MIB,
    payloadDir: e.RELAY_BATCH_PAYLOAD_DIR,
    payloadReserveBytes: e.RELAY_PAYLOAD_RESERVE_MIB === undefined ? null : e.RELAY_PAYLOAD_RESERVE_MIB * MIB,
    concurrency: e.RELAY_BATCH_CONCURRENCY,
    itemTimeoutMs: e.RELAY_BATCH_ITEM_TIMEOUT_S * 1000,
    flushMs: e.RELAY_BATCH_FLUSH_MS ?? (e.RELAY_PAYLOAD_STORE === 's3' ? 200 : 10),
    onWorkerLoss: e.RELAY_BATCH_ON_WORKER_LOSS,
    retentionDays: e.RELAY_BATCH_RETENTION_DAYS,
    usageRetentionDays: e.RELAY_USAGE_RETENTION_DAYS,
    maxPendingItemsPerOwner: e.RELAY_MAX_PENDING_ITEMS_PER_OWNER,
    maxStreamsPerOwner: e.RELAY_MAX_STREAMS_PER_OWNER,
    payloadStore: e.RELAY_PAYLOAD_STORE,
    s3Bucket: e.RELAY_S3_BUCKET ?? null,
    s3Prefix: e.RELAY_S3_PREFIX,
    queue: e.RELAY_QUEUE,
    sqsQueueUrl: e.RELAY_SQS_QUEUE_URL ?? null,
    shutdownDeadlineMs: e.RELAY_SHUTDOWN_DEADLINE_S * 1000,
    logLevel: e.RELAY_LOG_LEVEL,
    instanceId: e.RELAY_INSTANCE_ID ?? null,
  };
}

function isMasterKey(text: string): boolean {
  return /^[A-Za-z0-9+/]{43}=$/.test(text);
}
