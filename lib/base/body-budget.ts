import { ApiError } from './errors.ts';

/** Raises what is counted for one thing to `bytes` in all. Throws 503 `overloaded` when the owner may not hold that now. */
export type Reserve = (bytes: number) => void;

/** The memory of one request: of its body, or of the upload that it names, and of what is made of them. */
export interface BodyAccount {
  /** Counts the body. */
  reserve: Reserve;
  /** For a further thing that is in memory beside it, which is counted for itself. */
  part(): Reserve;
  /** Ends the account. What was counted is free again. */
  close(): void;
}

/** Of a request that is counted nowhere: on Lambda one call at a time has all of the memory. */
export const UNCOUNTED: BodyAccount = { reserve() {}, part: () => () => {}, close() {} };

/** Bytes of request bodies that are in memory at once, over all requests of a process. */
export interface BodyBudget {
  /** An account for one request of an owner. Close it when nothing reads the body any more. */
  open(owner: string): BodyAccount;
  /** Bytes that are counted at present. */
  held(): number;
}

/**
 * A budget of `capBytes`. An owner's only body may take what is free. One with others of its owner may take no more than
 * they leave free together. So one owner fills half of the budget, and the next owner finds room.
 */
export function createBodyBudget(capBytes: number): BodyBudget {
  const held = new Map<string, number>();
  let total = 0;

  const mayTake = (owner: string, counted: number, more: number): boolean => {
    const own = held.get(owner) ?? 0;
    const free = capBytes - total - more;
    return free >= 0 && (own === counted || own + more <= free);
  };
  const add = (owner: string, bytes: number): void => {
    const own = (held.get(owner) ?? 0) + bytes;
    if (own === 0) held.delete(owner);
    else held.set(owner, own);
    total += bytes;
  };

  return {
    open(owner) {
      let whole = 0;
      const part = (): Reserve => {
        let counted = 0;
        return (bytes) => {
          const more = bytes - counted;
          if (more <= 0) return;
          if (!mayTake(owner, whole, more)) throw new ApiError('overloaded');
          add(owner, more);
          whole += more;
          counted = bytes;
        };
      };
      return {
        reserve: part(),
        part,
        close() {
          add(owner, -whole);
          whole = 0;
        },
      };
    },
    held: () => total,
  };
}

const STEP_BYTES = 1024 * 1024;
/** Beyond this all is reserved at once: of many that grow together none would come to its end. */
const STEPS_UNTIL = 4 * 1024 * 1024;

/** How much to reserve for what has grown to `bytes`, and may become `mostBytes` large. */
export function reserveFor(bytes: number, mostBytes: number): number {
  return bytes > STEPS_UNTIL ? mostBytes : Math.min(mostBytes, Math.ceil(bytes / STEP_BYTES) * STEP_BYTES);
}

/** The same bytes. Counts those that are on their way into a store, which are never more than `mostBytes`. */
export async function* counted<Chunk extends Uint8Array>(
  source: AsyncIterable<Chunk>,
  reserve: Reserve,
  mostBytes: number,
): AsyncGenerator<Chunk> {
  let passed = 0;
  for await (const chunk of source) {
    if (passed < mostBytes) {
      passed = Math.min(mostBytes, passed + chunk.byteLength);
      reserve(reserveFor(passed, mostBytes));
    }
    yield chunk;
  }
}
