import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { LOCALSTACK_HOOK_MS } from '../support/localstack.ts';
import { ANTHROPIC_CASES } from './support/anthropic-cases.ts';
import { OPENAI_CASES } from './support/openai-cases.ts';
import { type Deployment, SETUPS } from './support/setups.ts';

for (const [name, here, open] of SETUPS) {
  describe.skipIf(!here)(`the official clients on ${name}`, () => {
    let setup: Deployment;
    beforeAll(async () => {
      setup = await open();
    }, LOCALSTACK_HOOK_MS);
    afterAll(() => setup?.close());
    beforeEach(() => setup.upstream.forget());

    test.each(OPENAI_CASES)('OpenAI: %s', (_name, run) => run(setup));
    test.each(ANTHROPIC_CASES)('Anthropic: %s', (_name, run) => run(setup));

    test('in all that, no function asks for more than its role allows', () => expect(setup.denied).toEqual([]));
  });
}
