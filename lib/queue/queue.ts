/** What a wake-up is about. It is a hint: state is read from Postgres, so lost, late and duplicate ones are harmless. */
export type Wake = { kind: 'work' } | { kind: 'cancel'; batchId: string } | { kind: 'catalog' };

/** Tells other replicas that there is something to look at. A failure is logged by the caller and never fails its call. */
export interface WakeQueue {
  send(wake: Wake, count?: number): Promise<void>;
}
