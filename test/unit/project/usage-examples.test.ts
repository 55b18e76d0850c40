import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import type { Rate } from '../../../lib/model/catalog.ts';
import { price } from '../../../lib/usage/cost.ts';
import { measure } from '../../../lib/usage/measure.ts';
import { ROOT } from '../../support/root.ts';

const document = readFileSync(join(ROOT, 'docs/usage.md'), 'utf8');
const cards = parse(/```yaml rates\n([^`]*)```/.exec(document)![1]!) as Record<string, Rate[]>;

const examples = [
  ...document.matchAll(/^\| (openai|openai_responses|anthropic) \| `([^`]+)` \| (\w+) \| (.+?) \| (\S+) \|(.*)\|$/gm),
];
const valueIn = (cell: string) => {
  const json = /`([^`]+)`/.exec(cell);
  return json ? JSON.parse(json[1]!) : null;
};

describe('worked examples of docs/usage.md', () => {
  test('there are some', () => {
    expect(examples.length).toBeGreaterThanOrEqual(16);
    expect(Object.keys(cards)).toContain('tiered');
  });

  for (const [, adapter, usage, card, tokens, cost, breakdown] of examples) {
    test(`${adapter} ${usage} at ${card} costs ${cost}`, () => {
      const answer = { usage: JSON.parse(usage!) };
      const measured = measure(adapter as 'openai', answer);
      expect(measured.tokens).toEqual(valueIn(tokens!));
      const pricing = { id: '1', name: card!, currency: 'USD', enabled: true, rates: cards[card!]! };
      const result = measured.tokens && price(pricing, measured.tokens);
      if (cost === 'unpriced') {
        expect(result).toBeNull();
        return;
      }
      expect(result).toEqual({ costNanos: BigInt(cost!), breakdown: valueIn(breakdown!) });
      expect(Object.keys(result!.breakdown)).toEqual(Object.keys(valueIn(breakdown!)));
    });
  }
});
