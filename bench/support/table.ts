import { type Figure, format, isMet, type Target } from './figure.ts';

/** Renders the figures of one section as lines of text: name, value, target, comparison. */
export function renderFigures(section: string, figures: readonly Figure[]): string {
  const width = Math.max(...figures.map((figure) => figure.name.length));
  const lines = figures.map((figure) => {
    const verdict = { true: 'reached', false: 'MISSED' }[String(isMet(figure))] ?? '';
    const value = `${format(figure.value).padStart(10)} ${figure.unit.padEnd(9)}`;
    return `  ${figure.name.padEnd(width)} ${value} ${renderTarget(figure.target).padEnd(9)} ${verdict.padEnd(7)}  ${figure.comparedWith}`;
  });
  return `${section}\n${lines.join('\n')}\n`;
}

function renderTarget(target: Target | undefined): string {
  if (target === undefined) return '';
  return 'atLeast' in target ? `>= ${target.atLeast}` : `<= ${target.atMost}`;
}
