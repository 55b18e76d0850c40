import {
  type Document,
  isAlias,
  isCollection,
  isNode,
  isPair,
  isScalar,
  LineCounter,
  type Node,
  type Pair,
  parseAllDocuments,
  visit,
} from 'yaml';
import { type CatalogDocument, type CatalogFault, type Claim, checkDocument, claimOf } from './document.ts';

/** The documents of YAML files, valid or not. `applyCatalog` refuses all of them if `faults` is not empty. */
export interface CatalogSource {
  documents: CatalogDocument[];
  faults: CatalogFault[];
  /** The claims of documents with faults. */
  claims: Claim[];
}

const MAX_DEPTH = 64;
const MAX_ALIASES = 1000;
/** Values that all aliases of a document stand for. */
const MAX_ALIASED = 100_000;

/**
 * Reads the YAML documents of `files`, each with its path (for faults) and text. Never throws: any problem becomes a
 * fault with file, document number and field. Empty documents are ignored, but counted.
 */
export function parseCatalog(files: readonly { file: string; text: string }[]): CatalogSource {
  const source: CatalogSource = { documents: [], faults: [], claims: [] };
  for (const { file, text } of files) parseFile(file, text, source);
  return source;
}

function parseFile(file: string, text: string, source: CatalogSource): void {
  const lines = new LineCounter();
  const fileFault = (document: number | null, message: string) => {
    source.faults.push({ file, document, kind: null, name: null, field: '', message });
  };
  let documents: Document.Parsed[];
  try {
    // prettyErrors would quote the source, and a source may hold secrets. uniqueKeys compares each key with all others.
    const options = { lineCounter: lines, prettyErrors: false, logLevel: 'silent', uniqueKeys: false } as const;
    const parsed = parseAllDocuments(text, options);
    documents = 'empty' in parsed ? [] : parsed;
  } catch {
    fileFault(null, 'is not valid YAML: nested too deeply');
    return;
  }
  for (const [i, document] of documents.entries()) {
    const number = i + 1;
    const faultAt = (offset: number, message: string) => {
      const { line, col } = lines.linePos(offset);
      fileFault(number, `is not valid YAML at line ${line}, column ${col}: ${message}`);
    };
    const problems = [...document.errors, ...document.warnings];
    for (const problem of problems) faultAt(problem.pos[0], wordsOf(problem.code));
    if (problems.length > 0 || document.contents === null) continue;
    const value = toValue(document, faultAt);
    if (value === null) continue;
    if ('fault' in value) fileFault(number, value.fault);
    else if (value.raw !== null) takeDocument(value.raw, file, number, source);
  }
}

function takeDocument(raw: unknown, file: string, document: number, source: CatalogSource): void {
  const checked = checkDocument(raw, { file, document });
  if (checked.ok) {
    source.documents.push(checked.document);
    return;
  }
  source.faults.push(...checked.faults);
  const claim = claimOf(raw, { file, document });
  if (claim) source.claims.push(claim);
}

/** Plain data, a fault of the whole, or null after a call of `faultAt`. */
function toValue(
  document: Document.Parsed,
  faultAt: (offset: number, message: string) => void,
): { raw: unknown } | { fault: string } | null {
  try {
    const shape = shapeOf(document);
    if (shape.fault !== null) return { fault: shape.fault };
    for (const key of shape.repeated) faultAt(key.range?.[0] ?? 0, 'a key is given twice');
    // The library's own count of aliases walks the document for each.
    return shape.repeated.length > 0 ? null : { raw: document.toJS({ maxAliasCount: -1 }) };
  } catch {
    return { fault: 'is not plain data' };
  }
}

interface Shape {
  fault: string | null;
  /** Keys that a mapping has already. */
  repeated: Node[];
}

/**
 * Looks at every node once, in the order of the text. Refuses what would take long to read: deep nesting, an alias of its
 * own parent, a bomb of aliases, keys that are lists or mappings.
 */
function shapeOf(document: Document.Parsed): Shape {
  const shape: Shape = { fault: null, repeated: [] };
  const aliases = new Map<Node, Node>();
  const anchors = new Map<string, Node>();
  const keys = new Map<unknown, Set<unknown>>();
  visit(document, (_key, node, path) => {
    if (path.length > MAX_DEPTH) shape.fault = 'is nested too deeply';
    else if (isPair(node)) shape.fault = takeKey(node, path.at(-1), keys, shape.repeated);
    else if (isAlias(node)) {
      const source = anchors.get(node.source);
      if (source === undefined) shape.fault = 'has an alias without its anchor';
      else aliases.set(node, source);
      if (aliases.size > MAX_ALIASES) shape.fault = 'uses too many aliases';
      else if (source !== undefined && path.includes(source)) shape.fault = 'has an alias that contains itself';
    } else if (isNode(node) && node.anchor !== undefined) anchors.set(node.anchor, node);
    return shape.fault === null ? undefined : visit.BREAK;
  });
  if (shape.fault === null && aliasedValues(document, aliases) > MAX_ALIASED) shape.fault = 'uses too many aliases';
  return shape;
}

function takeKey({ key }: Pair, mapping: unknown, keys: Map<unknown, Set<unknown>>, repeated: Node[]): string | null {
  if (!isScalar(key)) return 'has a key that is not a plain value';
  const known = keys.get(mapping) ?? new Set();
  keys.set(mapping, known);
  if (known.has(key.value)) repeated.push(key);
  known.add(key.value);
  return null;
}

/** How many values the aliases stand for, those in what they stand for included. Sources come before their aliases. */
function aliasedValues(document: Document.Parsed, aliases: ReadonlyMap<Node, Node>): number {
  const sizes = new Map<unknown, number>();
  let aliased = 0;
  const sizeOf = (node: unknown): number => {
    let size = 1;
    if (isAlias(node)) {
      size = sizes.get(aliases.get(node)) ?? 1;
      aliased += size;
    } else if (isCollection(node)) {
      for (const item of node.items) size += isPair(item) ? 1 + sizeOf(item.value) : sizeOf(item);
    }
    if (isNode(node) && 'anchor' in node && node.anchor !== undefined) sizes.set(node, size);
    return size;
  };
  if (aliases.size > 0) sizeOf(document.contents);
  return aliased;
}

/** `BAD_INDENT` -> `bad indent`. The library's own messages are not used: they repeat text of the source. */
function wordsOf(code: string): string {
  return code === 'DUPLICATE_KEY' ? 'a key is given twice' : code.toLowerCase().replaceAll('_', ' ');
}
