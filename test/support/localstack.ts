import type { AwsServer } from './aws.ts';

/** The last release that asks for no account. */
const IMAGE = 'localstack/localstack:4.14.0';
const PORT = 4566;
/** An engine that does not answer the request for its version within this time counts as missing. */
const ENGINE_MS = 10_000;
/** From the start of the container, after its image was pulled. */
const START_MS = 120_000;
/** For the hook that starts it: the first one pulls an image of more than 1 GB. */
export const LOCALSTACK_HOOK_MS = 900_000;

/**
 * True when a Docker engine answers, on DOCKER_HOST or where engines listen by default (not over ssh). False at once where
 * nothing is found, after `withinMs` where one is named that stays silent.
 */
export async function hasDocker(withinMs = ENGINE_MS): Promise<boolean> {
  const { getContainerRuntimeClient } = await import('testcontainers');
  let timer: NodeJS.Timeout | undefined;
  const silent = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), withinMs);
  });
  const answers = getContainerRuntimeClient().then(
    () => true,
    () => false,
  );
  return Promise.race([answers, silent]).finally(() => clearTimeout(timer));
}

/**
 * LocalStack in a container of its own, on a port that the engine chooses. `stop` removes it; should this process be
 * killed, the engine's own reaper (Ryuk, see TESTCONTAINERS_RYUK_DISABLED) does.
 */
export async function startLocalStack(): Promise<AwsServer> {
  const { GenericContainer, Wait } = await import('testcontainers');
  const container = await new GenericContainer(IMAGE)
    .withExposedPorts(PORT)
    // Queue URLs by the host and port that the request came to; its own name for itself would carry the inner port.
    .withEnvironment({ SERVICES: 's3,sqs', EAGER_SERVICE_LOADING: '1', SQS_ENDPOINT_STRATEGY: 'dynamic' })
    .withWaitStrategy(Wait.forHttp('/_localstack/health', PORT))
    .withStartupTimeout(START_MS)
    .start();
  return {
    name: 'LocalStack',
    endpoint: `http://${container.getHost()}:${container.getMappedPort(PORT)}`,
    stop: async () => void (await container.stop()),
  };
}
