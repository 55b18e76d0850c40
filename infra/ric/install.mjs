// Builds the runtime client of Lambda for `npm run test:lambda`: one or two minutes, once, on whatever Node the machine
// has. If it cannot be built within the limit (no compiler, no network), this script says so and ends with 0, and the
// test names what it skips.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';

const LIMIT_S = 300;
const here = import.meta.dirname;
const client = join(here, 'node_modules/aws-lambda-ric');
const read = (path) => JSON.parse(readFileSync(path, 'utf8'));

if (!isBuilt()) {
  process.stderr.write('Building aws-lambda-ric (npm ci in infra/ric, one or two minutes) ...\n');
  if (!(await build()) || !isBuilt()) {
    process.stderr.write(
      `Skipped: aws-lambda-ric cannot be built here within ${LIMIT_S} s (it needs Linux, cmake, make, g++, python3 and the registry)\n`,
    );
  }
}

async function build() {
  const path = (process.env.PATH ?? '').split(delimiter).filter((entry) => !entry.includes('node_modules'));
  const settings = ['--ignore-scripts=false', '--no-audit', '--no-fund', '--loglevel=error', '--fetch-retries=1'];
  // In a group of its own, so that the compilers end with it.
  const npm = spawn('npm', ['ci', ...settings], {
    cwd: here,
    env: { ...process.env, PATH: path.join(delimiter) },
    stdio: ['ignore', 2, 2],
    detached: true,
  });
  const end = () => process.kill(-npm.pid, 'SIGKILL');
  const late = setTimeout(end, LIMIT_S * 1000);
  const interrupted = () => {
    end();
    process.exit(1);
  };
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, interrupted);
  const [status] = await once(npm, 'exit').catch(() => [1]);
  clearTimeout(late);
  return status === 0;
}

function isBuilt() {
  if (!existsSync(join(client, 'rapid-client.node'))) return false;
  return read(join(client, 'package.json')).version === read(join(here, 'package.json')).dependencies['aws-lambda-ric'];
}
