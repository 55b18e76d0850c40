/** A wake-up and its reason. It is a hint: Postgres has the state, so lost, late and duplicate ones are harmless. */
export type Wake = { kind: 'work' } | { kind: 'cancel'; batchId: string } | { kind: 'catalog' };

/** Tells other replicas that there is something to look at. A failure is logged by the caller and never fails its call. */
export interface WakeQueue {
  send(wake: Wake, count?: number): Promise<void>;
}

/** The message body of a wake-up. */
export function wakeBody(wake: Wake): string {
  return JSON.stringify(wake);
}

/** The wake-up of a message body. Any other text counts as `work`: looking for work is cheap. */
export function parseWake(body: string): Wake {
  try {
    const value = JSON.parse(body) as { kind?: unknown; batchId?: unknown };
    if (value.kind === 'cancel' && typeof value.batchId === 'string') return { kind: 'cancel', batchId: value.batchId };
    if (value.kind === 'catalog') return { kind: 'catalog' };
  } catch {}
  return { kind: 'work' };
}
