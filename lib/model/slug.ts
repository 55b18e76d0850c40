const MAX_SLUG = 63;

/**
 * Returns the form in which names are compared ("Model names and slugs" in docs/spec/gateway-rules.md): lower case,
 * each run outside `[a-z0-9]` one `-`, trimmed, at most 63 characters. `openai/gpt-5.4` and `openai-gpt-5-4` have the
 * same slug. Empty if nothing is left.
 */
export function slug(text: string): string {
  return cutSlug(wholeSlug(text));
}

/** Returns the slug before it is cut to 63 characters. It distinguishes long names that share their beginning. */
export function wholeSlug(text: string): string {
  return squash(text).replace(/^-|-$/g, '');
}

/** Cuts a whole slug to 63 characters. The result never ends in `-`, so a slug is its own slug. */
export function cutSlug(whole: string): string {
  return whole.length <= MAX_SLUG ? whole : whole.slice(0, MAX_SLUG).replace(/-$/, '');
}

/**
 * Returns the literal parts of a wildcard as they stand in slugs. The dash at the star is kept: `gpt-4[*]` has the
 * prefix `gpt-4-` and so does not match `gpt-40`.
 */
export function wildcardSlugs(before: string, after: string): { prefix: string; suffix: string } {
  return { prefix: squash(before).replace(/^-/, ''), suffix: squash(after).replace(/-$/, '') };
}

function squash(text: string): string {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, '-');
}
