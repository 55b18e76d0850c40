import { spawnSync } from 'node:child_process';
import { cp, mkdir, readFile, stat, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';

/** One instruction; `args` is its JSON form, or its words. */
export interface Instruction {
  name: string;
  text: string;
  args: string[];
}

export interface Stage {
  name: string;
  from: string;
  instructions: Instruction[];
}

/** What `build` made of a stage: a directory that stands for its root file system, and how it is run. */
export interface Built {
  root: string;
  env: Record<string, string>;
  workdir: string;
  user: string;
  cmd: string[];
  healthcheck: string[];
}

const FLAG = /^--/;

/** The stages of a Dockerfile, without its comments. Only what ours uses: no heredocs, no ARG, no ONBUILD. */
export function parseDockerfile(text: string): Stage[] {
  const stages: Stage[] = [];
  const joined = text.replace(/^\s*#.*\n/gm, '').replace(/\\\n/g, ' ');
  for (const line of joined.split('\n').filter((one) => one.trim() !== '')) {
    const [, name = '', rest = ''] = /^([A-Z]+)\s+(.*)$/.exec(line.trim()) ?? [];
    if (name === 'FROM') {
      const [, from = '', stage = ''] = /^(\S+) AS (\S+)$/.exec(rest) ?? [];
      stages.push({ name: stage, from, instructions: [] });
      continue;
    }
    const list = /\[.*\]$/.exec(rest)?.[0];
    const args = list === undefined ? rest.split(/\s+/) : (JSON.parse(list) as string[]);
    stages.at(-1)!.instructions.push({ name, text: rest, args });
  }
  return stages;
}

/**
 * Does the steps of one stage, and of those it needs, without Docker. Each stage gets a directory below `home` as its root,
 * COPY reads the checkout through `.dockerignore`, RUN runs on this machine with absolute paths moved below the root. The
 * base image is this machine's own, and an `npm ci` of everything is the checkout's node_modules: that is what made them,
 * a minute ago. Rejects when a step fails, or copies what the context does not have.
 */
export async function buildStage(stages: Stage[], name: string, context: string, home: string): Promise<Built> {
  const stage = stages.find((one) => one.name === name)!;
  const parent = stages.find((one) => one.name === stage.from);
  const root = join(home, name);
  const built: Built = { root, env: {}, workdir: '/', user: '0', cmd: [], healthcheck: [] };
  await mkdir(root, { recursive: true });
  if (parent !== undefined) {
    const base = await buildStage(stages, parent.name, context, home);
    await cp(base.root, root, { recursive: true });
    Object.assign(built, { ...base, root });
  }
  const allowed = await allowedBy(join(context, '.dockerignore'));
  for (const { name: step, text, args } of stage.instructions) {
    if (step === 'WORKDIR') {
      built.workdir = text;
      await mkdir(join(root, text), { recursive: true });
    } else if (step === 'ENV') {
      for (const pair of args) built.env[pair.split('=')[0]!] = pair.slice(pair.indexOf('=') + 1);
    } else if (step === 'COPY') {
      const from = args.find((arg) => arg.startsWith('--from='))?.slice('--from='.length);
      if (from !== undefined) await buildStage(stages, from, context, home);
      await copy(
        from === undefined ? context : join(home, from),
        args.filter((arg) => !FLAG.test(arg)),
        {
          at: join(root, built.workdir),
          allowed: from === undefined ? allowed : () => true,
        },
      );
    } else if (step === 'RUN' && /^npm ci\b(?!.*--omit)/.test(text)) {
      await symlink(join(context, 'node_modules'), join(root, built.workdir, 'node_modules'));
    } else if (step === 'RUN') run(text, built);
    else if (step === 'USER') built.user = text;
    else if (step === 'CMD') built.cmd = args;
    else if (step === 'HEALTHCHECK') built.healthcheck = args;
    else if (step !== 'VOLUME' && step !== 'EXPOSE') throw new Error(`${step} is not known here`);
  }
  return built;
}

async function copy(
  source: string,
  paths: string[],
  { at, allowed }: { at: string; allowed: (path: string) => boolean },
): Promise<void> {
  const target = join(at, paths.at(-1)!);
  for (const path of paths.slice(0, -1)) {
    if (!allowed(path)) throw new Error(`.dockerignore leaves out ${path}`);
    const isFile = (await stat(join(source, path))).isFile();
    const into = isFile && paths.at(-1)!.endsWith('/') ? join(target, path.split('/').at(-1)!) : target;
    await mkdir(dirname(into), { recursive: true });
    await cp(join(source, path), into, { recursive: true, verbatimSymlinks: true });
  }
}

function run(command: string, { root, workdir, env }: Built): void {
  const moved = command.replace(/(?<=\s)\/(?=\w)/g, `${root}/`);
  // Only root may give files away; anybody else owns them already.
  const text = process.getuid?.() === 0 ? moved : moved.replace(/ -[og] \d+/g, '');
  const { status, stderr } = spawnSync('sh', ['-c', text], {
    cwd: join(root, workdir),
    encoding: 'utf8',
    env: { PATH: process.env.PATH, HOME: process.env.HOME, npm_config_prefer_offline: 'true', ...env },
  });
  if (status !== 0) throw new Error(`RUN ${command}: ${stderr}`);
}

/** `.dockerignore` that ignores everything but what `!` names. */
async function allowedBy(path: string): Promise<(path: string) => boolean> {
  const lines = (await readFile(path, 'utf8')).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  if (lines.shift() !== '*') throw new Error('.dockerignore has to begin with *');
  return (one) => lines.some((line) => line === `!${one}` || one.startsWith(`${line.slice(1)}/`));
}
