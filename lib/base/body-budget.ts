import { ApiError } from './errors.ts';

/** The memory of one request's body, or of the upload that it names. */
export interface BodyAccount {
  /**
   * Raises what is counted for the request to `bytes` in all. Throws 503 `overloaded` when that is more than the owner
   * may hold now.
   */
  reserve(bytes: number): void;
  /** Ends the account. What was counted is free again. */
  close(): void;
}

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
      let counted = 0;
      return {
        reserve(bytes) {
          const more = bytes - counted;
          if (more <= 0) return;
          if (!mayTake(owner, counted, more)) throw new ApiError('overloaded');
          add(owner, more);
          counted = bytes;
        },
        close() {
          add(owner, -counted);
          counted = 0;
        },
      };
    },
    held: () => total,
  };
}
