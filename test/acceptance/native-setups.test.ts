import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { LOCALSTACK_HOOK_MS } from '../support/localstack.ts';
import { NATIVE_CASES } from '../support/native-cases.ts';
import { type Deployment, SETUPS } from './support/setups.ts';

for (const [name, here, open] of SETUPS) {
  describe.skipIf(!here)(`the native API on ${name}`, () => {
    let setup: Deployment;
    beforeAll(async () => {
      setup = await open();
    }, LOCALSTACK_HOOK_MS);
    afterAll(() => setup?.close());
    beforeEach(() => {
      setup.upstream.forget();
      setup.upstream.answerWith(null);
    });

    test.each(NATIVE_CASES)('%s', (_name, run) => run(setup));

    test('in all that, no function asks for more than its role allows', () => expect(setup.denied).toEqual([]));
  });
}
