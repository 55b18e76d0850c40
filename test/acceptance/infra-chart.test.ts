import { spawnSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse, parseAllDocuments, stringify } from 'yaml';
import { loadConfig } from '../../lib/app/config.ts';
import { ROOT } from '../support/root.ts';
import { definitions, render } from './support/go-template.ts';

const CHART = join(ROOT, 'infra/helm/relay-batch');
const SECRET = {
  RELAY_PG_DSN: 'postgres://relay@db/relay',
  RELAY_MASTER_KEY: Buffer.alloc(32).toString('base64'),
  RELAY_ADMIN_TOKEN: 'a "token"',
};
const FILE = {
  secret: SECRET,
  catalogConfigMap: 'catalogue',
  env: { RELAY_BATCH_CONCURRENCY: 64, RELAY_LOG_LEVEL: 'warn' },
};
const S3 = {
  existingSecret: 'mine',
  payloads: { store: 's3', s3: { bucket: 'b', prefix: 'p', region: 'eu-central-1' } },
  serviceAccount: { annotations: { role: 'arn:aws:iam::0:role/relay' } },
  nodeSelector: { disk: 'ssd' },
  podAnnotations: { note: 'x' },
  imagePullSecrets: [{ name: 'registry' }],
  tolerations: [{ key: 'k', operator: 'Exists' }],
  podDisruptionBudget: { enabled: false },
};

// biome-ignore lint/suspicious/noExplicitAny: Kubernetes' objects are of many forms
type Manifest = any;

const merged = (base: Manifest, over: Manifest): Manifest => {
  if (typeof base !== 'object' || typeof over !== 'object' || Array.isArray(over) || base === null) return over;
  return {
    ...base,
    ...Object.fromEntries(Object.entries(over).map(([k, v]) => [k, k in base ? merged(base[k], v) : v])),
  };
};
const manifestsOf = (text: string): Manifest[] =>
  parseAllDocuments(text).flatMap((document) => {
    expect(document.errors).toEqual([]);
    const value = document.toJS();
    return value === null ? [] : [value];
  });

/** The chart's manifests for a release named `r`. */
async function template(values: object): Promise<Manifest[]> {
  const read = (path: string) => readFile(join(CHART, path), 'utf8');
  const { name, version, appVersion } = parse(await read('Chart.yaml'));
  const root = {
    Values: merged(parse(await read('values.yaml')), values),
    Chart: { Name: name, Version: version, AppVersion: appVersion },
    Release: { Name: 'r', Service: 'Helm' },
  };
  const named = definitions(await read('templates/_helpers.tpl'));
  const files = (await readdir(join(CHART, 'templates'))).filter((file) => file.endsWith('.yaml'));
  const texts = await Promise.all(files.map(async (file) => render(await read(`templates/${file}`), root, named)));
  return texts.flatMap(manifestsOf);
}

const kinds = (all: Manifest[]) => all.map(({ kind, metadata }) => `${kind} ${metadata.name}`).sort();
const one = (all: Manifest[], kind: string) => all.find((manifest) => manifest.kind === kind);

/** Returns the variables that the process sees: those of the image, the secret and the container. */
function environment(pod: Manifest, secret: Record<string, string>): Record<string, string> {
  const env = Object.fromEntries(
    pod.containers[0].env.map((entry: Manifest) => [
      entry.name,
      entry.value ?? `from ${entry.valueFrom.fieldRef.fieldPath}`,
    ]),
  );
  expect(Object.keys(env)).toHaveLength(pod.containers[0].env.length);
  for (const value of Object.values(env)) expect(value).toBeTypeOf('string');
  return { ...secret, ...env, RELAY_INSTANCE_ID: 'pod' };
}

describe.for([
  ['files', FILE],
  ['S3', S3],
] as const)('the chart on %s', ([, values]) => {
  test('names what it refers to', async () => {
    const all = await template(values);
    const pod = one(all, 'Deployment').spec.template;
    const names = kinds(all);
    for (const { kind, spec } of all) {
      const selector = kind === 'Service' ? spec.selector : spec?.selector?.matchLabels;
      if (selector !== undefined) expect(pod.metadata.labels).toMatchObject(selector);
    }
    const ports = pod.spec.containers[0].ports.map((port: Manifest) => port.name);
    for (const { spec } of all.filter(({ kind }) => kind === 'Service'))
      expect(ports).toContain(spec.ports[0].targetPort);
    const volumes = pod.spec.volumes.map((volume: Manifest) => volume.name).sort();
    expect(pod.spec.containers[0].volumeMounts.map((mount: Manifest) => mount.name).sort()).toEqual(volumes);
    expect(names).toContain(`ServiceAccount ${pod.spec.serviceAccountName}`);
    const secret = pod.spec.containers[0].envFrom[0].secretRef.name;
    expect(secret === 'mine' || names.includes(`Secret ${secret}`)).toBe(true);
    const claim = pod.spec.volumes.find((volume: Manifest) => volume.name === 'payloads').persistentVolumeClaim;
    if (claim !== undefined) expect(names).toContain(`PersistentVolumeClaim ${claim.claimName}`);
  });

  test('runs without root on a read-only file system, and outlives its own shutdown', async () => {
    const { spec: pod } = one(await template(values), 'Deployment').spec.template;
    const [container] = pod.containers;
    expect(pod.securityContext).toMatchObject({ runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000 });
    expect(container.securityContext).toMatchObject({
      readOnlyRootFilesystem: true,
      allowPrivilegeEscalation: false,
      capabilities: { drop: ['ALL'] },
    });
    expect(container.readinessProbe.httpGet).toEqual({ path: '/healthz', port: 'http' });
    expect([container.livenessProbe, container.startupProbe]).toEqual([
      expect.objectContaining({ tcpSocket: { port: 'http' } }),
      expect.objectContaining({ tcpSocket: { port: 'http' } }),
    ]);
    const deadline = Number(environment(pod, SECRET).RELAY_SHUTDOWN_DEADLINE_S);
    const before = Number(container.lifecycle.preStop.exec.command[1]);
    expect(pod.terminationGracePeriodSeconds).toBeGreaterThanOrEqual(deadline + before + 20);
  });

  test('gives the service a configuration that it takes', async () => {
    const { spec: pod } = one(await template(values), 'Deployment').spec.template;
    const config = loadConfig(environment(pod, SECRET));
    expect(config).toMatchObject({ port: 8080, controlPort: 8081, shutdownDeadlineMs: 60_000, instanceId: 'pod' });
    if (values === FILE)
      expect(config).toMatchObject({ payloadStore: 'file', concurrency: 64, catalogPath: '/catalog' });
    else expect(config).toMatchObject({ payloadStore: 's3', s3Bucket: 'b', s3Prefix: 'p' });
  });
});

describe('the chart', () => {
  test('makes volume, secret and budget only where they are wanted', async () => {
    const common = [
      'Deployment r-relay-batch',
      'Service r-relay-batch',
      'Service r-relay-batch-control',
      'ServiceAccount r-relay-batch',
    ];
    expect(kinds(await template(S3))).toEqual(common);
    expect(kinds(await template(FILE))).toEqual(
      [
        ...common,
        'PersistentVolumeClaim r-relay-batch-payloads',
        'PodDisruptionBudget r-relay-batch',
        'Secret r-relay-batch',
      ].sort(),
    );
    const all = await template(FILE);
    expect(one(all, 'PersistentVolumeClaim').spec.accessModes).toEqual(['ReadWriteMany']);
    expect(one(all, 'PodDisruptionBudget').spec.maxUnavailable).toBe(1);
    expect(one(all, 'Secret').stringData).toEqual(SECRET);
  });

  test('says what is missing', async () => {
    await expect(template({})).rejects.toThrow('secret.RELAY_PG_DSN or existingSecret is missing');
    await expect(template({ ...S3, payloads: { store: 's3' } })).rejects.toThrow('payloads.s3.bucket is missing');
  });

  test('rolls the pods when its secret changes', async () => {
    const sums = await Promise.all(
      [FILE, { ...FILE, secret: { ...SECRET, RELAY_ADMIN_TOKEN: 'new' } }].map(
        async (values) =>
          one(await template(values), 'Deployment').spec.template.metadata.annotations['checksum/secret'],
      ),
    );
    expect(sums[0]).not.toBe(sums[1]);
  });

  const hasHelm = spawnSync('helm', ['version'], { stdio: 'ignore' }).status === 0;
  test.skipIf(!hasHelm)(
    'is rendered the same by helm, which (when it is on the PATH) finds no fault in it',
    async () => {
      const dir = await mkdtemp(join(tmpdir(), 'relay-chart-'));
      for (const values of [FILE, S3]) {
        const path = join(dir, 'values.yaml');
        await writeFile(path, stringify(values));
        const lint = spawnSync('helm', ['lint', '--strict', CHART, '-f', path], { encoding: 'utf8' });
        expect([lint.status, lint.stdout]).toEqual([0, lint.stdout]);
        const { status, stdout, stderr } = spawnSync('helm', ['template', 'r', CHART, '-f', path], {
          encoding: 'utf8',
        });
        expect([status, stderr]).toEqual([0, '']);
        const bySum = (all: Manifest[]) =>
          all.map((manifest) => JSON.stringify(manifest).replace(/"checksum\/secret":"\w+"/, '')).sort();
        const keyed = (all: Manifest[]) =>
          bySum(all.map((manifest) => parse(stringify(manifest, { sortMapEntries: true }))));
        expect(keyed(manifestsOf(stdout))).toEqual(keyed(await template(values)));
      }
      await rm(dir, { recursive: true });
    },
  );
});
