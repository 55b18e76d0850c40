import { type Document, isAlias, LineCounter, parseAllDocuments, visit } from 'yaml';
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
    // prettyErrors would quote the source, and a source may hold secrets.
    const parsed = parseAllDocuments(text, { lineCounter: lines, prettyErrors: false, logLevel: 'silent' });
    documents = 'empty' in parsed ? [] : parsed;
  } catch {
    fileFault(null, 'is not valid YAML: nested too deeply');
    return;
  }
  for (const [i, document] of documents.entries()) {
    const number = i + 1;
    const problems = [...document.errors, ...document.warnings];
    for (const problem of problems) {
      const { line, col } = lines.linePos(problem.pos[0]);
      fileFault(number, `is not valid YAML at line ${line}, column ${col}: ${wordsOf(problem.code)}`);
    }
    if (problems.length > 0 || document.contents === null) continue;
    const value = toValue(document);
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

/** Returns plain data. Refuses an alias of its own parent, or a bomb of aliases, before it is expanded. */
function toValue(document: Document.Parsed): { raw: unknown } | { fault: string } {
  try {
    let fault: string | null = null;
    let aliases = 0;
    visit(document, (_key, node, path) => {
      if (path.length > MAX_DEPTH) fault = 'is nested too deeply';
      else if (isAlias(node)) {
        // The search for an alias walks the document. Without the bound, a file of aliases takes minutes.
        if (++aliases > MAX_ALIASES) fault = 'uses too many aliases';
        else if (path.some((parent) => parent === node.resolve(document))) fault = 'has an alias that contains itself';
      }
      return fault === null ? undefined : visit.BREAK;
    });
    return fault === null ? { raw: document.toJS({ maxAliasCount: 100 }) } : { fault };
  } catch {
    return { fault: 'uses too many aliases' };
  }
}

/** `BAD_INDENT` -> `bad indent`. The library's own messages are not used: they repeat text of the source. */
function wordsOf(code: string): string {
  return code === 'DUPLICATE_KEY' ? 'a key is given twice' : code.toLowerCase().replaceAll('_', ' ');
}
