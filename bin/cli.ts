#!/usr/bin/env node
import { Command } from 'commander';
import { ApiError, ConfigError } from '../lib/base/errors.ts';
import { CatalogError, formatFault } from '../lib/catalog/documents/document.ts';
import { applyCommand } from './commands/apply.ts';
import { housekeepCommand } from './commands/housekeep.ts';
import { migrateCommand } from './commands/migrate.ts';
import { rekeyCommand } from './commands/rekey.ts';
import { rotateSigningKeyCommand } from './commands/rotate-signing-key.ts';

const cli = new Command('relay-batch').description(
  'What is done beside a running service. Reads the same environment: RELAY_PG_DSN, or RELAY_DATA_DIR for its embedded Postgres.',
);
for (const command of [applyCommand, housekeepCommand, migrateCommand, rekeyCommand, rotateSigningKeyCommand]) {
  cli.addCommand(command(process.env));
}
try {
  await cli.parseAsync();
} catch (error) {
  process.stderr.write(`${explain(error)}\n`);
  process.exitCode = 1;
}

function explain(error: unknown): string {
  if (error instanceof CatalogError) {
    return `The catalogue is not valid, nothing was applied:\n  ${error.faults.map(formatFault).join('\n  ')}`;
  }
  if (error instanceof ConfigError || error instanceof ApiError) return error.message;
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
