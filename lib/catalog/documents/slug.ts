const MAX_SLUG = 63;

/**
 * The form in which names are compared (behaviour section 2): lower case, each run outside `[a-z0-9]` one `-`, trimmed,
 * at most 63 characters. `openai/gpt-5.4` and `openai-gpt-5-4` are one name. Empty when nothing is left, which never
 * matches anything.
 */
export function slug(text: string): string {
  const whole = squash(text).replace(/^-|-$/g, '');
  return whole.slice(0, MAX_SLUG).replace(/-$/, '');
}

/** The literal parts of a wildcard alias in slug form; the dash at the star is kept (`gpt-4-*` does not cover `gpt-40`). */
export function wildcardSlugs(before: string, after: string): { prefix: string; suffix: string } {
  return { prefix: squash(before).replace(/^-/, ''), suffix: squash(after).replace(/-$/, '') };
}

function squash(text: string): string {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, '-');
}
