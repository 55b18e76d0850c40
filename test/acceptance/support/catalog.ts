/** Models that the catalogue knows: ordinary ones, and directives of the misbehaving upstream. */
const MODELS = ['fast', 'other', 'hang', 'hang-body', 'drip', 'slow-200', 'slow-1500', 'status-400'];

/** Relay keys as they are presented: `ann` and `bob`, both of the policy `p`. */
export const KEYS = {
  RELAY_KEY_ANN: `sk-wr-${'a'.repeat(64)}`,
  RELAY_KEY_BOB: `sk-wr-${'b'.repeat(64)}`,
  UPSTREAM_KEY_1: 'upstream-1',
  UPSTREAM_KEY_2: 'upstream-2',
};

/** One host with `hostKeys` keys in order, a model for each directive, one policy that grants everything. */
export function catalogOf(upstreamUrl: string, hostKeys = 1): string {
  const keys = Array.from({ length: hostKeys }, (_, i) => `up-${i + 1}`);
  return [
    `kind: Host\nmetadata: {name: up}\nspec: {baseURL: "${upstreamUrl}"}`,
    ...keys.map(
      (name, i) =>
        `kind: HostKey\nmetadata: {name: ${name}}\nspec: {host: up, valueFrom: {kind: env, env: UPSTREAM_KEY_${i + 1}}}`,
    ),
    ...MODELS.flatMap((name) => [
      `kind: Model\nmetadata: {name: ${name}}\nspec: {provider: test}`,
      `kind: Binding\nmetadata: {name: ${name}}\nspec: {model: ${name}, host: up, adapter: openai}`,
    ]),
    'kind: Binding\nmetadata: {name: fast-messages}\nspec: {model: fast, host: up, adapter: anthropic}',
    `kind: Policy\nmetadata: {name: p}\nspec: {hostKeys: [${keys.join(', ')}]}`,
    'kind: Key\nmetadata: {name: ann}\nspec: {policy: p, valueFrom: {kind: env, env: RELAY_KEY_ANN}}',
    'kind: Key\nmetadata: {name: bob}\nspec: {policy: p, valueFrom: {kind: env, env: RELAY_KEY_BOB}}',
  ].join('\n---\n');
}
