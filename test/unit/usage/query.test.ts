import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ApiError } from '../../../lib/base/errors.ts';
import { percentiles } from '../../../lib/usage/durations.ts';
import { parseMoment, parseSpan } from '../../../lib/usage/moment.ts';
import { parseFilter, requestId } from '../../../lib/usage/query.ts';

const NOW = Date.parse('2027-01-31T12:00:00.250Z');
const BATCH = '0194bd2a-0000-7000-8000-000000000001';
const filter = (query: string) => parseFilter({ query: new URLSearchParams(query), owner: null }, NOW, []);
const refusal = (query: string): string | null => {
  try {
    filter(query);
    return null;
  } catch (error) {
    expect(error).toBeInstanceOf(ApiError);
    expect((error as ApiError).code).toBe('invalid_value');
    return (error as ApiError).param;
  }
};

describe('the period of a usage query', () => {
  test('is the last hour unless said otherwise, this very moment included', () => {
    const { from, to } = filter('');
    expect(to.getTime()).toBeGreaterThan(NOW);
    expect(to.getTime() - from.getTime()).toBe(3_600_000);
  });

  test('goes back by since, or from one moment to another', () => {
    expect(filter('since=2d').from.getTime()).toBe(filter('').to.getTime() - 2 * 86_400_000);
    expect(filter('from=2027-01-01T00:00:00Z&to=2027-01-02T00:00:00%2B02:00')).toMatchObject({
      from: new Date('2027-01-01T00:00:00Z'),
      to: new Date('2027-01-01T22:00:00Z'),
    });
    expect(filter('to=2027-01-01T00:00:00Z').from).toEqual(new Date('2026-12-31T23:00:00Z'));
    expect(filter('since=999999999d').from).toEqual(new Date(0));
    expect(filter('from=1970-01-01T00:00:00Z&to=9999-12-31T23:59:59.999Z')).toMatchObject({
      from: new Date(0),
      to: new Date('9999-12-31T23:59:59.999Z'),
    });
  });

  test('bad values are named', () => {
    for (const since of ['', '0s', '1', '1w', '-1h', '1.5h', '1h30m', 'h', '1H', '1234567890s']) {
      expect([since, refusal(`since=${since}`)]).toEqual([since, 'since']);
    }
    expect(refusal('since=1h&since=2h')).toBe('since');
    expect(refusal('since=1h&from=2027-01-01T00:00:00Z')).toBe('since');
    expect(refusal('from=2027-01-02T00:00:00Z&to=2027-01-01T00:00:00Z')).toBe('from');
    for (const bad of [
      '',
      'now',
      '2027-01-01',
      '2027-01-01T00:00:00',
      '2027-02-30T00:00:00Z',
      '2027-01-01T25:00:00Z',
      '1700000000',
      '0000-01-01T00:00:00Z',
      '1800-01-01T00:00:00Z',
      '1969-12-31T23:59:59.999Z',
      '1970-01-01T00:00:00+00:01',
      '9999-12-31T23:59:59-00:01',
    ]) {
      expect([bad, refusal(`from=${bad}`)]).toEqual([bad, 'from']);
      expect([bad, refusal(`to=${bad}`)]).toEqual([bad, 'to']);
    }
  });
});

describe('the filters of a usage query', () => {
  test('collect what is repeated, and say nothing where nothing was asked', () => {
    const given = filter('status=200&status=500&model=a&model=b&error=true&status_class=4xx&status_class=5');
    expect(given).toMatchObject({
      status: [200, 500],
      model: ['a', 'b'],
      error: [true],
      status_class: [4, 5],
      host: null,
    });
  });

  test('take any text, as it is stored', () => {
    expect(filter('host=%00%F0%9F%98%80').host).toEqual(['\\u0000\u{1f600}']);
    expect(filter(`requested_model=${'m'.repeat(300)}`).requested_model).toEqual(['m'.repeat(128)]);
    expect(filter(`error_message=${'m'.repeat(300)}`).error_message).toEqual(['m'.repeat(300)]);
    expect(filter('team=').team).toEqual(['']);
  });

  test('ids that are none match nothing', () => {
    expect(filter('batch_id=x').batch_id).toEqual([]);
    expect(filter(`batch_id=x&batch_id=${BATCH.toUpperCase()}`).batch_id).toEqual([BATCH]);
    expect(filter(`request_id=${requestId(BATCH, 7)}`).request_id).toEqual([{ batch_id: BATCH, batch_idx: 7 }]);
    for (const id of ['', 'x', BATCH, `${BATCH}-7`, `${BATCH}-9999999999`])
      expect(filter(`request_id=${id}`).request_id).toEqual([]);
    expect(filter('source=live').batch_id).toEqual([]);
    expect(filter('source=live&source=batch').batch_id).toBeNull();
  });

  test('bad values, and parameters that do not exist, are named', () => {
    const cases: Record<string, string[]> = {
      status: ['x', '-1', '1000', '2.5', ''],
      status_class: ['22', 'xx', '2xxx', ''],
      status_min: ['x', '1000'],
      status_max: ['x'],
      error: ['yes', '1', ''],
      batch_idx: ['-1', '2147483648', 'x'],
      duration_ms: ['x'],
      attempts: ['x'],
      cost_nanos: ['-1', '9223372036854775808', '1.5', 'x'],
      ts: ['yesterday', '1800-01-01T00:00:00Z'],
      modle: ['gpt'],
      tokens: ['1'],
    };
    for (const [name, values] of Object.entries(cases)) {
      for (const value of values) expect([name, value, refusal(`${name}=${value}`)]).toEqual([name, value, name]);
    }
    expect(filter('cost_nanos=9223372036854775807').cost_nanos).toEqual(['9223372036854775807']);
  });

  test('a request id as text sorts as the items do', () => {
    fc.assert(
      fc.property(fc.nat(2_147_483_647), fc.nat(2_147_483_647), (a, b) => {
        expect(requestId(BATCH, a) < requestId(BATCH, b)).toBe(a < b);
      }),
    );
  });
});

test('spans and moments are read strictly', () => {
  expect([parseSpan('90s'), parseSpan('15m'), parseSpan('6h'), parseSpan('7d')]).toEqual([
    90e3, 900e3, 21_600e3, 604_800e3,
  ]);
  expect(parseMoment('2027-01-01t00:00:00.1239z')).toEqual(new Date('2027-01-01T00:00:00.123Z'));
  expect(parseMoment('2027-01-01T02:00:00 02:00')).toEqual(new Date('2027-01-01T00:00:00Z'));
});

test('percentiles are values that occur, as by sorting everything', () => {
  const shares = [0.5, 0.95, 0.99];
  expect(percentiles('[]', shares)).toEqual([null, null, null]);
  fc.assert(
    fc.property(fc.array(fc.nat(50), { minLength: 1, maxLength: 300 }), (durations) => {
      const counts = new Map<number, number>();
      for (const value of durations) counts.set(value, (counts.get(value) ?? 0) + 1);
      const sorted = [...durations].sort((a, b) => a - b);
      const expected = shares.map((share) => sorted[Math.ceil(share * sorted.length) - 1]);
      expect(percentiles(JSON.stringify([...counts].flat()), shares)).toEqual(expected);
    }),
  );
});
