import { Command } from 'commander';
import { loadConfig } from '../../lib/app/config.ts';
import { requireBox, rotateSigningKeys } from '../../lib/auth/signing-keys.ts';
import { createLog } from '../../lib/base/log.ts';
import { connected } from './connect.ts';

/** `relay-batch rotate-signing-key`: run it twice to end every token that was issued. */
export function rotateSigningKeyCommand(env: NodeJS.ProcessEnv): Command {
  return new Command('rotate-signing-key')
    .description('sign inference tokens with a new key; the last one continues to verify, the one before it stops')
    .action(async () => {
      const kid = await connected(loadConfig(env), createLog('warn'), ({ db, secretBox }) =>
        rotateSigningKeys(db, requireBox(secretBox)),
      );
      process.stdout.write(`New tokens are signed with key ${kid}.\n`);
    });
}
