/** An integer in a JSON answer: a number, or beyond 2^53 the digits themselves, which JSON.stringify writes as they are. */
export type JsonInteger = number;

const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };

/** The integer that the database gave as text. */
export function jsonInteger(digits: string): JsonInteger {
  const value = Number(digits);
  return Number.isSafeInteger(value) ? value : (rawJSON(digits) as JsonInteger);
}
