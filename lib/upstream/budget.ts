/** Answers below this are not counted, unless they are decoded for long: slots bound them, and nearly all are so small. */
export const LARGE_BYTES = 1024 * 1024;

/** A call whose answer is being received. */
export interface Receiver {
  /** Reads on after a pause. */
  resume(): void;
}

/**
 * Bytes of large answers that are in memory at once, over all calls of a process: from the first MiB of an answer until
 * its outcome is recorded. Above the cap calls stop reading their sockets (TCP then holds the upstream back). The oldest
 * large answer reads on all the same, so that something can finish, unless whole answers that wait for their commit fill
 * the cap: those go by themselves. At most the cap and one answer more are held.
 */
export interface ByteBudget {
  /** Counts bytes of an answer; false: stop reading until `resume`. */
  take(receiver: Receiver, bytes: number): boolean;
  /** The answer has arrived whole, or never will; `left` bytes of it stay counted until `give`. */
  end(receiver: Receiver, taken: number, left: number): void;
  /** Bytes that were kept are held no longer. */
  give(bytes: number): void;
  held(): number;
}

/** A budget of `cap` bytes. */
export function createByteBudget(cap: number): ByteBudget {
  // In the order in which they became large; true while paused.
  const receiving = new Map<Receiver, boolean>();
  let arriving = 0;
  let kept = 0;
  const mayRead = (isOldest: boolean) => kept + arriving < cap || (isOldest && kept < cap);

  const resumeSome = () => {
    let first = true;
    for (const [receiver, paused] of receiving) {
      if (!mayRead(first)) return;
      if (paused) {
        receiving.set(receiver, false);
        receiver.resume();
      }
      first = false;
    }
  };

  return {
    take(receiver, bytes) {
      arriving += bytes;
      if (!receiving.has(receiver)) receiving.set(receiver, false);
      if (mayRead(receiving.keys().next().value === receiver)) return true;
      receiving.set(receiver, true);
      return false;
    },
    end(receiver, taken, left) {
      arriving -= taken;
      kept += left;
      receiving.delete(receiver);
      resumeSome();
    },
    give(bytes) {
      kept -= bytes;
      resumeSome();
    },
    held: () => arriving + kept,
  };
}
