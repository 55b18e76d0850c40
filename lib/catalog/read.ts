import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { type CatalogSource, parseCatalog } from './documents/yaml.ts';

/**
 * Reads YAML files and directories. Of a directory it reads `*.yaml` and `*.yml`, sorted by name, without hidden ones
 * and sub-directories. A file that cannot be read is a fault like any other.
 */
export async function readCatalog(paths: readonly string[]): Promise<CatalogSource> {
  const files: { file: string; text: string }[] = [];
  const unreadable: CatalogSource['faults'] = [];
  const refuse = (file: string, message: string) => {
    unreadable.push({ file, document: null, kind: null, name: null, field: '', message });
  };
  for (const path of paths) {
    try {
      for (const file of await expand(path)) {
        const text = decode(await readFile(file));
        if (text === null) refuse(file, 'is not UTF-8');
        else files.push({ file, text });
      }
    } catch (error) {
      refuse(path, `cannot be read: ${(error as NodeJS.ErrnoException).code ?? 'unknown error'}`);
    }
  }
  const source = parseCatalog(files);
  return { ...source, faults: [...unreadable, ...source.faults] };
}

async function expand(path: string): Promise<string[]> {
  if (!(await stat(path)).isDirectory()) return [path];
  const names = (await readdir(path)).filter((name) => /\.ya?ml$/.test(name) && !name.startsWith('.')).sort();
  const files: string[] = [];
  // `stat` follows symbolic links, which the directory entry does not: mounted catalogues often use them.
  for (const name of names) if ((await stat(join(path, name))).isFile()) files.push(join(path, name));
  return files;
}

function decode(bytes: Buffer): string | null {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}
