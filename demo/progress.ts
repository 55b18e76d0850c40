const BAR_WIDTH = 32;

/** Counts by item state, as the status call returns them: only states that are present. */
export type Counts = Readonly<Record<string, number>>;

/** Returns how many items are final, whatever their outcome. */
export function finalOf(counts: Counts): number {
  return (counts.completed ?? 0) + (counts.discarded ?? 0) + (counts.cancelled ?? 0);
}

/**
 * Shows the progress of a batch. On a terminal it redraws a bar, else it prints one plain line for each tenth of the
 * batch, so that a log stays short.
 */
export function createProgress(out: NodeJS.WriteStream, total: number): { show(counts: Counts): void; end(): void } {
  let shown = -1;
  const text = (counts: Counts) => {
    const states = ['running', 'completed', 'discarded'].map((state) => `${state} ${counts[state] ?? 0}`);
    return `${String(finalOf(counts)).padStart(String(total).length)}/${total}  ${states.join('  ')}`;
  };
  if (!out.isTTY) {
    return {
      show(counts) {
        const tenth = Math.floor((finalOf(counts) / total) * 10);
        if (tenth <= shown) return;
        shown = tenth;
        out.write(`  ${text(counts)}\n`);
      },
      end() {},
    };
  }
  return {
    show(counts) {
      const filled = Math.floor((finalOf(counts) / total) * BAR_WIDTH);
      const bar = '█'.repeat(filled) + '░'.repeat(BAR_WIDTH - filled);
      out.write(`\r\u001b[2K  ${bar} ${text(counts)}`);
      shown = filled;
    },
    end() {
      if (shown >= 0) out.write('\n');
    },
  };
}
