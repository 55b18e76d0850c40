/** Lets so many in at a time; the others wait in order. */
export interface Gate {
  enter(): Promise<void>;
  leave(): void;
}

/** A gate for `most` at a time. */
export function createGate(most: number): Gate {
  const waiting: (() => void)[] = [];
  let inside = 0;
  return {
    enter() {
      if (inside < most) {
        inside++;
        return Promise.resolve();
      }
      return new Promise((resolve) => waiting.push(resolve));
    },
    leave() {
      const next = waiting.shift();
      if (next) next();
      else inside--;
    },
  };
}
