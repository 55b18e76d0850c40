// Installs the dependencies if they are missing or not those of package-lock.json; else does nothing (10 ms). It runs
// before every npm script, on whatever Node the machine has, so it is plain JavaScript without a dependency.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { accessSync, constants, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const modules = join(root, 'node_modules');
const stamp = join(modules, '.relay-batch-installed');
const node = join(modules, 'node', 'bin', process.platform === 'win32' ? 'node.exe' : 'node');

const lock = readFileSync(join(root, 'package-lock.json'), 'utf8');
// The hash includes the platform: a checkout is sometimes carried into a container with its node_modules.
const wanted = createHash('sha256').update(`${process.platform} ${process.arch}\n${lock}`).digest('hex');

if (!isInstalled()) install();

function isInstalled() {
  if (!existsSync(node)) return false;
  try {
    return readFileSync(stamp, 'utf8') === wanted;
  } catch {
    return matchesLock(); // installed by hand
  }
}

/** Compares npm's note about its last run with the lock: packages and versions. Other platforms' may be missing. */
function matchesLock() {
  try {
    const noted = JSON.parse(readFileSync(join(modules, '.package-lock.json'), 'utf8')).packages;
    const locked = JSON.parse(lock).packages;
    const fits = (list, value) => list === undefined || list.includes(value);
    for (const [path, entry] of Object.entries(locked)) {
      if (path === '' || noted[path]?.version === entry.version) continue;
      const needed = fits(entry.os, process.platform) && fits(entry.cpu, process.arch);
      if (noted[path] !== undefined || (needed && !entry.optional)) return false;
    }
    return true;
  } catch {
    return false;
  }
}

function install() {
  process.stderr.write('Installing the dependencies (npm ci) ...\n');
  // The node of node_modules may run this file, and npm ci deletes it: npm must run on the machine's own.
  const path = (process.env.PATH ?? '').split(delimiter).filter((entry) => !entry.includes('node_modules'));
  const result = spawnSync(
    'npm',
    // The pinned Node is a development dependency with an install script, and Postgres an optional one. Settings that
    // leave these out would leave nothing that runs.
    [
      'ci',
      '--include=dev',
      '--include=optional',
      '--ignore-scripts=false',
      '--no-audit',
      '--no-fund',
      '--loglevel=error',
    ],
    {
      cwd: root,
      env: { ...process.env, PATH: path.join(delimiter), NODE_ENV: '' },
      // npm's summary goes to standard error with our own line, so that standard output stays that of the command.
      stdio: ['ignore', 2, 2],
      shell: process.platform === 'win32',
    },
  );
  if (result.status !== 0) {
    process.stderr.write(`npm ci failed${result.error ? `: ${result.error.message}` : ''}\n`);
    process.exit(1);
  }
  try {
    accessSync(node, constants.X_OK);
  } catch {
    process.stderr.write(`npm ci did not install the pinned Node (${node})\n`);
    process.exit(1);
  }
  writeFileSync(stamp, wanted);
}
