/**
 * The routing form of a name (behaviour section 2): lower case, each run outside `[a-z0-9]` one `-`, trimmed, at most 63
 * characters. `openai/gpt-5.4` and `openai-gpt-5-4` are one name. May be empty, which never matches anything.
 */
export function slug(text: string): string {
  const dashed = text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-/, '');
  return dashed.slice(0, 63).replace(/-$/, '');
}
