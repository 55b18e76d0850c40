import { Command } from 'commander';
import { loadConfig } from '../../lib/app/config.ts';
import { createLog } from '../../lib/base/log.ts';
import { applyCatalog } from '../../lib/catalog/apply.ts';
import { formatFault } from '../../lib/catalog/documents/document.ts';
import { readCatalog } from '../../lib/catalog/read.ts';
import { connected } from './connect.ts';

/** `relay-batch apply`: applies all of the documents or none. Every replica works with them within a second. */
export function applyCommand(env: NodeJS.ProcessEnv): Command {
  return new Command('apply')
    .description('apply catalogue files (docs/catalogue.md)')
    .argument('<path...>', 'YAML files, or directories of them')
    .option('--prune', 'delete what was applied before and is not among the documents', false)
    .action(async (paths: string[], { prune }: { prune: boolean }) => {
      const config = loadConfig(env);
      const source = await readCatalog(paths);
      const result = await connected(config, createLog('warn'), ({ db, secretBox }) =>
        applyCatalog(db, source, { env, secretBox, prune }),
      );
      for (const warning of result.warnings) process.stderr.write(`warning: ${formatFault(warning)}\n`);
      const { created, updated, deleted, unchanged } = result;
      process.stdout.write(`${created} created, ${updated} updated, ${deleted} deleted, ${unchanged} unchanged\n`);
    });
}
