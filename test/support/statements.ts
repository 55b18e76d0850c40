import { execFileSync } from 'node:child_process';
import { cpSync, globSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type pg from 'pg';
import ts from 'typescript';
import { ROOT } from './root.ts';

// Reads every statement of the *.sql.ts files out of the sources: its name and text as the module has them, and the row
// type that its call names. Then asks Postgres which columns the statement has.

/** A `db.query<Row>({ name, text, values })` of the sources. A call that chooses among several statements is one for each. */
export interface FoundStatement {
  /** File and line of the call. */
  at: string;
  name: string;
  text: string;
  /** Elements of `values`; null when the call does not list them. */
  parameters: number | null;
  /** Kinds of value by column; null when the call names no row type. */
  row: Record<string, string[]> | null;
  /** The expressions in the text beyond constants that are put together: calls, choices, sums. */
  built: string[];
}

/** A call whose name and text are code, over what the module has at its top level. */
interface Call extends Omit<FoundStatement, 'name' | 'text'> {
  code: string;
}

/**
 * Every statement of the *.sql.ts files below `folder`. The texts are taken from a copy of the folder whose modules print
 * them: no statement has to be exported, or run, for this. Throws for a text that depends on more than constants of its module.
 */
export function readStatements(folder = join(ROOT, 'lib')): FoundStatement[] {
  const files = globSync('**/*.sql.ts', { cwd: folder }).sort();
  const program = ts.createProgram(
    files.map((file) => join(folder, file)),
    compilerOptions(),
  );
  const calls = new Map(files.map((file) => [file, callsOf(program, join(folder, file), file)]));
  const copy = mkdtempSync(join(tmpdir(), 'relay-statements-'));
  try {
    cpSync(folder, join(copy, 'lib'), { recursive: true });
    symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'));
    writeFileSync(join(copy, 'package.json'), '{ "type": "module" }');
    for (const [file, found] of calls) {
      const pushes = found.map(({ code }, i) => `{ const call = ${i};\n${code} }`).join('\n');
      const source = readFileSync(join(folder, file), 'utf8');
      writeFileSync(join(copy, 'lib', file), `${source}\nexport const statements_ = [];\n${pushes}\n`);
    }
    const modules = files.map((file) => `[${JSON.stringify(file)}, (await import('./lib/${file}')).statements_]`);
    writeFileSync(join(copy, 'print.mjs'), `console.log(JSON.stringify([${modules.join(',\n')}]));`);
    const output = execFileSync(process.execPath, [join(copy, 'print.mjs')], { encoding: 'utf8', maxBuffer: 1e8 });
    const printed = JSON.parse(output) as [string, { call: number; name: string; text: string }[]][];
    return printed.flatMap(([file, statements]) =>
      statements.map(({ call, name, text }) => {
        const { at, parameters, row, built } = calls.get(file)![call]!;
        return { at, name, text, parameters, row, built };
      }),
    );
  } finally {
    rmSync(copy, { recursive: true });
  }
}

function compilerOptions(): ts.CompilerOptions {
  const { config } = ts.readConfigFile(join(ROOT, 'tsconfig.json'), ts.sys.readFile);
  return ts.parseJsonConfigFileContent(config, ts.sys, ROOT).options;
}

function callsOf(program: ts.Program, path: string, file: string): Call[] {
  const source = program.getSourceFile(path)!;
  const checker = program.getTypeChecker();
  const calls: Call[] = [];
  const visit = (node: ts.Node): void => {
    if (
      ts.isCallExpression(node) &&
      ts.isPropertyAccessExpression(node.expression) &&
      node.expression.name.text === 'query'
    ) {
      const at = `lib/${file}:${source.getLineAndCharacterOfPosition(node.getStart()).line + 1}`;
      calls.push(readCall(checker, node, at));
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return calls;
}

function readCall(checker: ts.TypeChecker, node: ts.CallExpression, at: string): Call {
  const statement = node.arguments[0];
  if (statement === undefined || !ts.isObjectLiteralExpression(statement)) {
    throw new Error(`${at}: a statement is an object with name, text and values in the call itself`);
  }
  const given = new Map<string, ts.ObjectLiteralElementLike>();
  for (const property of statement.properties) {
    if (property.name === undefined) throw new Error(`${at}: a statement is not spread from another one`);
    given.set(property.name.getText(), property);
  }
  const [name, text] = ['name', 'text'].map((key) => given.get(key));
  if (name === undefined || text === undefined) throw new Error(`${at}: a statement has a name and a text`);
  const frame = frameOf(checker, [name, text], at);
  const values = given.get('values');
  const list = values && ts.isPropertyAssignment(values) ? values.initializer : undefined;
  const listed = list && ts.isArrayLiteralExpression(list) && !list.elements.some(ts.isSpreadElement);
  const rowType = node.typeArguments?.[0];
  return {
    at,
    code: `${frame.join(' ')} statements_.push({ call, ${name.getText()}, ${text.getText()} });${' }'.repeat(frame.length)}`,
    parameters: listed ? list.elements.length : null,
    built: builtWith(checker, text),
    row: rowType === undefined ? null : kindsByColumn(checker, checker.getTypeFromTypeNode(rowType), node),
  };
}

/**
 * Blocks that make the local constants that `nodes` use. A constant that is chosen from a list of the module, by whatever
 * the caller asks for, becomes a loop over the list.
 */
function frameOf(checker: ts.TypeChecker, nodes: readonly ts.Node[], at: string): string[] {
  const frame: string[] = [];
  const known = new Set<ts.Node>();
  const visit = (node: ts.Node): void => {
    if (ts.isIdentifier(node) || ts.isShorthandPropertyAssignment(node)) resolve(node);
    ts.forEachChild(node, visit);
  };
  const resolve = (node: ts.Identifier | ts.ShorthandPropertyAssignment): void => {
    const symbol = ts.isIdentifier(node)
      ? checker.getSymbolAtLocation(node)
      : checker.getShorthandAssignmentValueSymbol(node);
    const declaration = symbol?.declarations?.[0];
    const owner =
      declaration &&
      ts.findAncestor(
        declaration,
        (one) => !ts.isBindingElement(one) && !ts.isObjectBindingPattern(one) && !ts.isArrayBindingPattern(one),
      );
    const variable = owner && ts.isVariableDeclaration(owner) ? owner : undefined;
    const parameter = owner && ts.isParameter(owner) ? owner : undefined;
    if (declaration === undefined || declaration.getSourceFile() !== node.getSourceFile()) return;
    if (parameter && nodes.every((root) => ts.findAncestor(parameter, (one) => one === root) === undefined)) {
      throw new Error(`${at}: a statement does not depend on the parameter ${parameter.name.getText()}`);
    }
    if (variable === undefined || known.has(variable)) return;
    const statement = variable.parent.parent;
    if (statement.parent === node.getSourceFile()) return; // of the module
    if (nodes.some((root) => ts.findAncestor(variable, (one) => one === root) !== undefined)) return; // of an own arrow function
    known.add(variable);
    const { name, initializer } = variable;
    if (ts.isForOfStatement(statement)) {
      visit(statement.expression);
      frame.push(`for (const ${name.getText()} of ${statement.expression.getText()}) {`);
    } else if (initializer && ts.isElementAccessExpression(initializer) && ts.isIdentifier(initializer.expression)) {
      visit(initializer.expression);
      frame.push(`for (const ${name.getText()} of Object.values(${initializer.expression.text})) {`);
    } else if (initializer) {
      visit(initializer);
      frame.push(`{ const ${name.getText()} = ${initializer.getText()};`);
    } else {
      throw new Error(`${at}: ${name.getText()} is no constant`);
    }
  };
  for (const node of nodes) visit(node);
  return frame;
}

/**
 * Walks from a text through the constants it names, into other modules too. `INPUT.sql.x` ends a way: what statementInput
 * makes has tests of its own.
 */
function builtWith(checker: ts.TypeChecker, text: ts.Node): string[] {
  const built: string[] = [];
  const seen = new Set<ts.Node>();
  const follow = (symbol: ts.Symbol | undefined): void => {
    const target = symbol && symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    const declaration = target?.declarations?.[0];
    const variable = declaration && ts.findAncestor(declaration, ts.isVariableDeclaration);
    if (variable === undefined || seen.has(variable) || ts.findAncestor(text, (one) => one === variable)) return;
    seen.add(variable);
    if (variable.initializer) visit(variable.initializer);
  };
  const visit = (node: ts.Node): void => {
    if (ts.isPropertyAccessExpression(node) && /^INPUT\.sql\.\w+$/.test(node.getText())) return;
    if (ts.isCallExpression(node) || ts.isConditionalExpression(node) || ts.isBinaryExpression(node)) {
      built.push(node.getText().replace(/\s+/g, ' ').slice(0, 60));
      return;
    }
    // The index chooses from a list that is closed.
    if (ts.isElementAccessExpression(node)) {
      visit(node.expression);
      return;
    }
    if (ts.isShorthandPropertyAssignment(node)) follow(checker.getShorthandAssignmentValueSymbol(node));
    else if (ts.isIdentifier(node)) follow(checker.getSymbolAtLocation(node));
    ts.forEachChild(node, visit);
  };
  visit(text);
  return built;
}

function kindsByColumn(checker: ts.TypeChecker, row: ts.Type, node: ts.Node): Record<string, string[]> {
  const columns = checker
    .getPropertiesOfType(row)
    .map((property) => [property.name, kindsOf(checker, checker.getTypeOfSymbolAtLocation(property, node))] as const);
  return Object.fromEntries(columns.map(([name, kinds]) => [name, [...new Set(kinds)].sort()]));
}

/** Returns the kinds of a value of the type at run time: `string`, `Date`, `number[]`. Null is left out. */
function kindsOf(checker: ts.TypeChecker, type: ts.Type): string[] {
  if (type.isUnion()) return type.types.flatMap((one) => kindsOf(checker, one));
  if (type.flags & (ts.TypeFlags.Null | ts.TypeFlags.Undefined)) return [];
  if (type.flags & ts.TypeFlags.StringLike) return ['string'];
  if (type.flags & ts.TypeFlags.NumberLike) return ['number'];
  if (type.flags & ts.TypeFlags.BooleanLike) return ['boolean'];
  if (!(type.flags & ts.TypeFlags.Object)) return [checker.typeToString(type)];
  const name = type.symbol?.name;
  if (name === 'Date' || name === 'Buffer') return [name];
  const element = checker.getIndexTypeOfType(type, ts.IndexKind.Number);
  if (!checker.isArrayLikeType(type) || element === undefined) return ['object'];
  return [...new Set(kindsOf(checker, element).map((kind) => `${kind}[]`))];
}

/** A statement as Postgres understands it. */
export interface Described {
  parameters: number;
  /** Name and type of each column, in order. */
  columns: { name: string; type: string }[];
}

/** Has Postgres parse and analyse a statement, without running it. */
export async function describeStatement(client: pg.Client, text: string): Promise<Described> {
  interface Field {
    name: string;
    dataTypeID: number;
  }
  interface Wire {
    parse(query: { text: string }): void;
    describe(what: { type: 'S' }): void;
    sync(): void;
    once(event: 'parameterDescription', listen: (message: { parameterCount: number }) => void): void;
  }
  const { parameters, fields } = await new Promise<{ parameters: number; fields: Field[] }>((resolve, reject) => {
    let parameters = 0;
    let fields: Field[] = [];
    let failed: Error | undefined;
    const request = {
      submit(wire: Wire) {
        wire.once('parameterDescription', (message) => {
          parameters = message.parameterCount;
        });
        wire.parse({ text });
        wire.describe({ type: 'S' });
        wire.sync();
      },
      handleRowDescription(message: { fields: Field[] }) {
        fields = message.fields;
      },
      handleError(error: Error) {
        failed = error;
        reject(error);
      },
      handleReadyForQuery() {
        if (failed === undefined) resolve({ parameters, fields });
      },
    };
    client.query(request as unknown as pg.Submittable);
  });
  const oids = [...new Set(fields.map(({ dataTypeID }) => dataTypeID))];
  const types = await client.query<{ oid: number; type: string }>(
    `select oid, case when typtype = 'e' then 'enum' else typname end as type from pg_type where oid = any($1::oid[])`,
    [oids],
  );
  const typeOf = new Map(types.rows.map(({ oid, type }) => [Number(oid), type]));
  return {
    parameters,
    columns: fields.map(({ name, dataTypeID }) => ({ name, type: typeOf.get(dataTypeID) ?? String(dataTypeID) })),
  };
}

/** The driver's kind of value for a type of Postgres. `object` is any JSON value. The test proves each with a value. */
export const KIND_OF_TYPE: Readonly<Record<string, string>> = {
  int2: 'number',
  int4: 'number',
  int8: 'number',
  float8: 'number',
  bool: 'boolean',
  text: 'string',
  uuid: 'string',
  name: 'string',
  enum: 'string',
  bytea: 'Buffer',
  timestamptz: 'Date',
  json: 'object',
  jsonb: 'object',
  _int4: 'number[]',
  _float8: 'number[]',
  _text: 'string[]',
};

/** Why a statement and its row type disagree; empty when they agree. Whether a column can be null is not compared. */
export function disagreements(found: FoundStatement, described: Described): string[] {
  const faults: string[] = [];
  if (found.parameters !== null && found.parameters !== described.parameters) {
    faults.push(`passes ${found.parameters} values to ${described.parameters} parameters`);
  }
  if (found.row === null) return faults;
  const { row } = found;
  for (const { name, type } of described.columns) {
    const kinds = row[name];
    const kind = KIND_OF_TYPE[type];
    if (kinds === undefined) faults.push(`returns ${name}, which the row type lacks`);
    else if (kind === undefined) faults.push(`returns ${name} as ${type}, which no rule maps`);
    else if (kind === 'object' ? !kinds.every(isJson) : kinds.join() !== kind) {
      faults.push(`returns ${name} as ${type}, which is ${kind}; the row type says ${kinds.join(' or ')}`);
    }
  }
  const columns = new Set(described.columns.map(({ name }) => name));
  for (const name of Object.keys(row)) if (!columns.has(name)) faults.push(`does not return ${name}`);
  if (columns.size < described.columns.length) faults.push('returns two columns of one name');
  return faults;
}

const isJson = (kind: string) => kind === 'object' || kind.endsWith('[]');
