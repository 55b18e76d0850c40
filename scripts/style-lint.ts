import { globSync, readFileSync } from 'node:fs';
import ts from 'typescript';

// Checks the prose of comments and of Markdown: words that a reader trips over, and sentences that are too long.
// `node scripts/style-lint.ts [file or folder...]`; CONTRIBUTING.md, "How we write", explains the rules.

/** The longest sentence, in words. A piece of inline code counts as one word. */
const LONGEST = 32;

/** The word list. A space matches any white space, so a phrase is found across a line break. */
const WORDS: [pattern: string, suggestion: string][] = [
  ['is no(?! longer)', 'write "is not a", or say what is missing'],
  ['(is|are) none', 'write "is not one", "is missing" or "is null"'],
  ['gives(?! up)|gave(?! up)', 'write "returns", "sets" or "passes"'],
  ['beats?', 'write "heartbeat"'],
  ['whoever', 'name who does it: "the caller", "the worker"'],
  ['(go|goes|going|went) on', 'write "continues"'],
  ['(come|comes|came) back', 'write "returns", "recovers" or "is delivered again"'],
  ['(come|comes|came|become|becomes|became) of', 'write "happens to"'],
  ['(is|are|was|were) gone', 'write "was deleted", "has ended" or "does not exist any more"'],
  ['(is|are|was|were) away', 'write "is unavailable" or "cannot be reached"'],
  ['(is|are|was|were) not there', 'write "does not exist" or "is missing"'],
  ['(is|are|was|were|be) told', 'write "is notified" or "is documented"'],
  ['(is|are|was|were) asked', 'write "is queried" or "is requested"'],
  ['looks? whether', 'write "checks whether"'],
  ['(take|takes|took|taken|taking) up', 'write "starts", "claims" or "occupies"'],
  ['(take|takes|took|taken|taking) for', 'write "treats as"'],
  ['mend(s|ed|ing)?', 'write "repair" or "fix"'],
  ['but for', 'write "except"'],
  ['nothing but', 'write "only"'],
];
const RULES = WORDS.map(([pattern, suggestion]) => ({
  find: new RegExp(`(?<![\\w-])(?:${pattern.replaceAll(' ', '\\s+')})(?![\\w-])`, 'gi'),
  suggestion,
}));

/** Lines of prose that belong together. `line` is the number of the first one, from 1. */
export type Paragraph = { line: number; text: string };

/** Returns the faults of a paragraph, in the order of their lines. */
export function faultsOf({ line, text }: Paragraph): { line: number; message: string }[] {
  const prose = blankOut(text);
  const at = (index: number) => line + prose.slice(0, index).split('\n').length - 1;
  const words = RULES.flatMap(({ find, suggestion }) =>
    [...prose.matchAll(find)].map((match) => ({
      line: at(match.index),
      message: `"${match[0].replaceAll(/\s+/g, ' ')}": ${suggestion}`,
    })),
  );
  const sentences = [...prose.matchAll(/\S.*?(?:[.!?][)"'*]*(?=\s)|$)/gs)].flatMap((match) => {
    const count = match[0].split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
    if (count <= LONGEST) return [];
    const start = text.slice(match.index, match.index + 40).replaceAll(/\s+/g, ' ');
    const message = `a sentence of ${count} words ("${start}..."): at most ${LONGEST}, split it`;
    return [{ line: at(match.index), message }];
  });
  return [...words, ...sentences].sort((a, b) => a.line - b.line);
}

/** Replaces inline code, URLs and the targets of links by as many letters, so that every offset stays. */
function blankOut(text: string): string {
  const letters = (part: string) => part.replaceAll(/[^\n]/g, 'x');
  return text
    .replaceAll(/(`+)[^`]+\1/g, letters)
    .replaceAll(/\]\([^)]*\)/g, letters)
    .replaceAll(/https?:\/\/\S+/g, letters);
}

/** Returns the paragraphs of Markdown lines: one for each list item and table cell, none for code, HTML and drawings. */
export function paragraphsOf(lines: string[], first = 1): Paragraph[] {
  const found: Paragraph[] = [];
  let open: Paragraph | null = null;
  let fence: string | null = null;
  for (const [index, raw] of lines.entries()) {
    const line = first + index;
    const text = raw.trim();
    const mark = /^(```|~~~|<!--)/.exec(text)?.[0];
    if (fence !== null || mark !== undefined) {
      if (fence === null) fence = mark === '<!--' ? '-->' : mark!;
      else if (!text.includes(fence)) continue;
      else fence = null;
      if (fence === '-->' && text.includes('-->')) fence = null;
      open = null;
    } else if (text.startsWith('|')) {
      open = null;
      const cells = text.split(/(?<!\\)\|/).map((cell) => cell.trim());
      for (const cell of cells) found.push({ line, text: cell });
    } else if (text === '' || isDrawing(raw)) {
      open = null;
    } else if (open === null || /^([-*+]|\d+\.|#+|>)\s/.test(text)) {
      open = { line, text: text.replace(/^([-*+]|\d+\.|#+|>)\s+/, '') };
      found.push(open);
      if (text.startsWith('#')) open = null;
    } else {
      open.text += `\n${text}`;
    }
  }
  return found;
}

/** True for a line of a picture or of aligned columns. */
function isDrawing(line: string): boolean {
  return /[\u2190-\u21ff\u2500-\u25ff]|-->|\S {3,}\S/.test(line);
}

/** Returns the paragraphs of all comments of a TypeScript or JavaScript file. Line comments below each other are one. */
export function commentsOf(file: string, source: string): Paragraph[] {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true);
  const blocks: { line: number; lines: string[]; joins: boolean }[] = [];
  const seen = new Set<number>();
  const add = (range: ts.CommentRange) => {
    if (seen.has(range.pos)) return;
    seen.add(range.pos);
    const { line } = tree.getLineAndCharacterOfPosition(range.pos);
    const text = source.slice(range.pos, range.end);
    const lineStart = source.lastIndexOf('\n', range.pos - 1) + 1;
    const joins =
      range.kind === ts.SyntaxKind.SingleLineCommentTrivia && /^\s*$/.test(source.slice(lineStart, range.pos));
    const last = blocks.at(-1);
    const lines = text.split('\n').map((part) => part.replace(/^\s*(\/\*+|\/\/+|\*(?!\/))?/, '').replace(/\*+\/$/, ''));
    if (joins && last?.joins && last.line + last.lines.length === line + 1) last.lines.push(...lines);
    else blocks.push({ line: line + 1, lines, joins });
  };
  const visit = (node: ts.Node) => {
    const children = node.getChildren(tree).filter((child) => !ts.isJSDoc(child));
    for (const child of children) visit(child);
    if (children.length > 0) return;
    for (const range of ts.getTrailingCommentRanges(source, node.pos) ?? []) add(range);
    for (const range of ts.getLeadingCommentRanges(source, node.pos) ?? []) add(range);
  };
  visit(tree);
  return blocks.flatMap(({ line, lines }) => paragraphsOf(lines, line));
}

const ROOTS = 'README.md CONTRIBUTING.md CHANGELOG.md docs bench bin demo handlers infra lib scripts test'.split(' ');

/** Returns the files of a root that have prose to check. */
function filesOf(root: string): string[] {
  if (/\.(md|ts|mjs)$/.test(root)) return [root];
  return globSync(`${root}/**/*.{md,ts,mjs}`, { exclude: ['**/node_modules/**'] }).sort();
}

if (import.meta.main) {
  const roots = process.argv.length > 2 ? process.argv.slice(2) : ROOTS;
  for (const file of roots.flatMap(filesOf)) {
    const source = readFileSync(file, 'utf8');
    const paragraphs = file.endsWith('.md') ? paragraphsOf(source.split('\n')) : commentsOf(file, source);
    for (const { line, message } of paragraphs.flatMap(faultsOf)) {
      process.stdout.write(`${file}:${line}: ${message}\n`);
      process.exitCode = 1;
    }
  }
}
