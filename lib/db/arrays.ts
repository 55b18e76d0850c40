/**
 * Array parameters as Postgres array literals. The driver's own serialiser quotes and escapes every element one by one,
 * which at hundreds of rows and thirty columns costs more than the statement; these know what they are given.
 */

/** Numbers, bigints, UUIDs and other text without quotes, commas, braces or backslashes. Null elements stay null. */
export function plainArray(values: readonly (string | number | bigint | null)[]): string {
  let out = '{';
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    out += i === 0 ? (value ?? 'NULL') : `,${value ?? 'NULL'}`;
  }
  return `${out}}`;
}

/** The nearest whole number that an int4 column takes. */
export function int4(value: number): number {
  return Math.max(-2_147_483_648, Math.min(2_147_483_647, Math.round(value)));
}

/**
 * Any text. The caller has cut control characters: Postgres refuses NUL. Null elements stay null.
 *
 * @internal Exported for its tests.
 */
export function textArray(values: readonly (string | null)[]): string {
  let out = '{';
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (i > 0) out += ',';
    out += value === null || value === undefined ? 'NULL' : `"${value.replace(/["\\]/g, '\\$&')}"`;
  }
  return `${out}}`;
}

/** As `plainArray`, or null when every element is null: unnest then pads the column, and nothing is sent. */
export function sparseArray(values: readonly (string | number | bigint | null)[]): string | null {
  return values.every((value) => value === null) ? null : plainArray(values);
}

/** As `textArray`, or null when every element is null. */
export function sparseTextArray(values: readonly (string | null)[]): string | null {
  return values.every((value) => value === null) ? null : textArray(values);
}
