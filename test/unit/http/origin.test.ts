import { expect, test } from 'vitest';
import { type ApiEvent, originOf } from '../../../lib/http/event.ts';

const asked = (domainName: string, headers: Record<string, string> = {}) =>
  ({ headers, requestContext: { domainName } }) as unknown as ApiEvent;

test('the configured URL goes before the host that was asked, and ends without a slash', () => {
  expect(originOf(asked('other:1'), 'https://relay.example/base/')).toBe('https://relay.example/base');
});

test.each(['relay.example', 'relay_1:8080', '127.0.0.1:8080', '[::1]:8080', '[fe80::1]'])(
  'without one it is the host that was asked, %s',
  (host) => {
    expect(originOf(asked(host), null)).toBe(`http://${host}`);
    expect(originOf(asked(host, { 'x-forwarded-proto': 'https' }), null)).toBe(`https://${host}`);
  },
);

test.each(['', 'evil.example/x?y=', 'a@b', 'a b', 'a:', 'a:123456', '[::1', 'a#', 'a\\b'])(
  'a Host of %j is refused: clients would send their key to what is made of it',
  (host) => {
    expect(() => originOf(asked(host), null)).toThrow(
      expect.objectContaining({ code: 'invalid_value', param: 'Host' }),
    );
  },
);
