import { createHash } from 'node:crypto';
import { stringify } from 'yaml';

/**
 * The part of Helm's template language that our chart keeps to, for machines without helm: `define`, `include`, `if`,
 * `with`, `range` over a map, pipelines. Stricter than helm: an unknown function and a missing value are errors.
 */
type Value = unknown;
type Vars = Record<string, Value>;
type Node =
  | { kind: 'text'; text: string }
  | { kind: 'print'; pipeline: string }
  | { kind: 'if' | 'with' | 'range' | 'define'; pipeline: string; body: Node[]; otherwise: Node[] };

const BLOCKS = ['if', 'with', 'range', 'define'] as const;
const TOKEN = /"(?:[^"\\]|\\.)*"|[()|]|[^\s()|]+/g;

/** Returns the named templates of `_helpers.tpl`, to be passed to `render`. */
export function definitions(text: string): Map<string, Node[]> {
  const found = new Map<string, Node[]>();
  for (const node of parse(text)) if (node.kind === 'define') found.set(JSON.parse(node.pipeline), node.body);
  return found;
}

/** Renders one file of `templates/`. Throws what `required` says, and for whatever it does not know. */
export function render(text: string, root: Value, named: Map<string, Node[]>): string {
  return print(parse(text), root, {}, named);
}

function parse(text: string): Node[] {
  const trimmed = text.replace(/\s*\{\{-/g, '{{').replace(/-\}\}\s*/g, '}}');
  const parts = trimmed.split(/\{\{\s*(.*?)\s*\}\}/);
  const top: Node[] = [];
  const open: { body: Node[]; block: Extract<Node, { body: Node[] }> }[] = [];
  let into = top;
  for (const [i, part] of parts.entries()) {
    const [word = '', rest = ''] = part.split(/\s+(.*)/s);
    const kind = BLOCKS.find((one) => one === word);
    if (i % 2 === 0) into.push({ kind: 'text', text: part });
    else if (kind !== undefined) {
      const block = { kind, pipeline: rest, body: [], otherwise: [] };
      into.push(block);
      open.push({ body: into, block });
      into = block.body;
    } else if (word === 'else') into = open.at(-1)!.block.otherwise;
    else if (word === 'end') into = open.pop()!.body;
    else into.push({ kind: 'print', pipeline: part });
  }
  if (open.length > 0) throw new Error(`${open.at(-1)!.block.pipeline} has no end`);
  return top;
}

function print(nodes: Node[], dot: Value, vars: Vars, named: Map<string, Node[]>): string {
  let out = '';
  for (const node of nodes) {
    if (node.kind === 'text') out += node.text;
    else if (node.kind === 'print') out += String(evaluate(node.pipeline, dot, vars, named) ?? '');
    else if (node.kind === 'range') {
      const [, key = '', item = '', source = ''] = /^(\$\w+), (\$\w+) := (.*)$/.exec(node.pipeline) ?? [];
      const entries = Object.entries(evaluate(source, dot, vars, named) as object).sort(([a], [b]) => (a < b ? -1 : 1));
      for (const [name, value] of entries)
        out += print(node.body, value, { ...vars, [key]: name, [item]: value }, named);
    } else if (node.kind !== 'define') {
      const value = evaluate(node.pipeline, dot, vars, named);
      const inner = node.kind === 'with' && isTrue(value) ? value : dot;
      out += print(isTrue(value) ? node.body : node.otherwise, inner, vars, named);
    }
  }
  return out;
}

function evaluate(pipeline: string, dot: Value, vars: Vars, named: Map<string, Node[]>): Value {
  const tokens = pipeline.match(TOKEN) ?? [];
  const functions: Record<string, (...args: never[]) => Value> = {
    include: (name: string, scope: Value) => print(named.get(name) ?? unknown(name), scope, {}, named),
    quote: (value: Value) => JSON.stringify(String(value)),
    default: (fallback: Value, value: Value) => (isTrue(value) ? value : fallback),
    printf: (format: string, ...values: Value[]) => format.replace(/%s/g, () => String(values.shift())),
    trunc: (length: number, value: string) => value.slice(0, length),
    trimSuffix: (suffix: string, value: string) => (value.endsWith(suffix) ? value.slice(0, -suffix.length) : value),
    contains: (part: string, value: string) => value.includes(part),
    nindent: (width: number, value: string) => value.replace(/^/gm, ' '.repeat(width)).replace(/^/, '\n'),
    toYaml: (value: Value) => stringify(value).trimEnd(),
    sha256sum: (value: string) => createHash('sha256').update(value).digest('hex'),
    eq: (a: Value, b: Value) => a === b,
    not: (value: Value) => !isTrue(value),
    add: (a: number, b: number) => a + b,
    required: (message: string, value: Value) => {
      if (!isTrue(value)) throw new Error(message);
      return value;
    },
  };
  let at = 0;
  const pipe = (): Value => {
    let value: Value;
    for (let first = true; first || tokens[at] === '|'; first = false) {
      if (!first) at++;
      value = command(first ? [] : [value]);
    }
    return value;
  };
  const command = (last: Value[]): Value => {
    const called = functions[tokens[at]!];
    if (called === undefined) return operand();
    at++;
    const args: Value[] = [];
    while (at < tokens.length && tokens[at] !== '|' && tokens[at] !== ')') args.push(operand());
    return called(...([...args, ...last] as never[]));
  };
  const operand = (): Value => {
    const token = tokens[at++]!;
    if (token === '(') {
      const value = pipe();
      at++;
      return value;
    }
    if (/^["\d]/.test(token)) return JSON.parse(token);
    if (token.startsWith('$')) return vars[token];
    if (!token.startsWith('.')) return unknown(token);
    const names = token.split('.').filter((name) => name !== '');
    return names.reduce<Value>((value, name) => {
      if (typeof value !== 'object' || value === null || !(name in value)) return unknown(token);
      return (value as Vars)[name];
    }, dot);
  };
  return pipe();
}

function isTrue(value: Value): boolean {
  if (typeof value === 'object' && value !== null) return Object.keys(value).length > 0;
  return Boolean(value);
}

function unknown(name: string): never {
  throw new Error(`${name} is not known`);
}
