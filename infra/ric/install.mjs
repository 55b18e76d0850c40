// Builds the runtime client of Lambda for `npm run test:lambda`: some minutes, once. Where it cannot be built it says so and
// ends with 0, and the test names what it skips. On whatever Node the machine has.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';

const here = import.meta.dirname;
const client = join(here, 'node_modules/aws-lambda-ric');
const read = (path) => JSON.parse(readFileSync(path, 'utf8'));

if (!isBuilt()) {
  process.stderr.write('Building aws-lambda-ric (npm ci in infra/ric, some minutes) ...\n');
  const path = (process.env.PATH ?? '').split(delimiter).filter((entry) => !entry.includes('node_modules'));
  const { status } = spawnSync('npm', ['ci', '--ignore-scripts=false', '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: here,
    env: { ...process.env, PATH: path.join(delimiter) },
    stdio: ['ignore', 2, 2],
  });
  if (status !== 0 || !isBuilt()) {
    process.stderr.write(
      'Skipped: aws-lambda-ric cannot be built here (it needs Linux, cmake, make, g++ and python3)\n',
    );
  }
}

function isBuilt() {
  if (!existsSync(join(client, 'rapid-client.node'))) return false;
  return read(join(client, 'package.json')).version === read(join(here, 'package.json')).dependencies['aws-lambda-ric'];
}
