import { uuidv7 } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { type InstanceLock, lockInstance } from '../db/instance-lock.ts';

/** Under which name this replica works. */
export interface Replica {
  /** The instance id; another one of its own when a live process has that already. */
  name(): string;
  /** True when no other live process has the name: what its former workers hold can be taken back at once. */
  isLocked(): boolean;
  /** Takes the lock of the instance id, or another name. Rejects when Postgres cannot be reached. */
  lock(): Promise<void>;
  release(): Promise<void>;
}

/** Names a replica after its instance id, and finds out with `lock` whether it may keep that name. */
export function createReplica(directDsn: string, instance: string, log: Log): Replica {
  let name = instance;
  let lock: InstanceLock | null = null;
  return {
    name: () => name,
    isLocked: () => lock?.held ?? false,
    async lock() {
      lock = await lockInstance(directDsn, instance, log);
      if (lock.held) return;
      log.warn('another live process has this instance id, continuing under a generated one');
      name = `${instance}-${uuidv7()}`;
    },
    release: async () => lock?.release(),
  };
}
