import type { BucketRule } from './rules.ts';

/**
 * Why an item was refused: `rate limit exceeded: requests of policy default, retry in 12s` (behaviour sections 5 and 7;
 * without the `batch item: ` prefix). Whole seconds, at least 1.
 */
export function limitText(rule: Pick<BucketRule, 'meter' | 'scope' | 'name'>, retryInSeconds: number): string {
  return `rate limit exceeded: ${rule.meter} of ${rule.scope} ${rule.name}, retry in ${retryInSeconds}s`;
}
