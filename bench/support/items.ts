import { Buffer } from 'node:buffer';

/** Returns the body of item `i`: about 180 bytes, or `bytes` of them if that is more. */
export function itemBody(i: number, bytes = 0): string {
  const body = (filler: string) =>
    `{"model":"bench","messages":[{"role":"user","content":"Item ${i} of a benchmark: what is ${i} plus one? ${filler}"}],"max_tokens":64,"temperature":0.2,"user":"u${i}"}`;
  const plain = body('');
  return plain.length >= bytes ? plain : body('x'.repeat(bytes - plain.length));
}

/** Returns the body of a submit with `count` items of about `bytes` bytes each. */
export function submission(count: number, bytes = 0): Buffer {
  const items = Array.from({ length: count }, (_, i) => itemBody(i, bytes));
  return Buffer.from(`{"shape":"openai","requests":[${items.join(',')}]}`);
}

/** The host key that the service sends, and the bare loop too. */
export const UPSTREAM_KEY = 'bench-upstream-key';

/** The relay keys of the benchmarks' catalogue: one policy without limits, one with three rules that never refuse. */
export const KEYS = { plain: 'bench-plain-key', limited: 'bench-limited-key' };

/** A catalogue with one model on the upstream at `url`. */
export function catalogOf(url: string): string {
  return `
kind: Host
metadata: { name: bench }
spec: { baseURL: "${url}" }
---
kind: HostKey
metadata: { name: bench }
spec: { host: bench, valueFrom: { kind: env, env: UPSTREAM_KEY } }
---
kind: Model
metadata: { name: bench }
spec: { provider: bench }
---
kind: Pricing
metadata: { name: bench }
spec:
  rates:
    - { meter: tokens.input, unit: per_million, amount: 0.15 }
    - { meter: tokens.output, unit: per_million, amount: 0.6 }
---
kind: Binding
metadata: { name: bench }
spec: { model: bench, host: bench, adapter: openai, pricing: bench }
---
kind: Policy
metadata: { name: plain }
spec: { models: [bench/bench], hostKeys: [bench] }
---
kind: RateLimit
metadata: { name: three }
spec:
  rules:
    - { meter: requests, amount: 1000000000, window: 60 }
    - { meter: requests, amount: 1000000000, window: 3600, strategy: sliding-window }
    - { meter: tokens, amount: 1000000000000, window: 3600, strategy: fixed-window }
---
kind: Policy
metadata: { name: limited }
spec: { models: [bench/bench], hostKeys: [bench], rateLimit: three }
---
kind: Key
metadata: { name: plain }
spec: { policy: plain, valueFrom: { kind: env, env: KEY_PLAIN } }
---
kind: Key
metadata: { name: limited }
spec: { policy: limited, valueFrom: { kind: env, env: KEY_LIMITED } }
`;
}
