import { z } from 'zod';
import { isUuid } from '../base/clock.ts';
import { ApiError } from '../base/errors.ts';
import type { SecretBox } from '../catalog/secrets/secret-box.ts';
import type { Database } from '../db/database.ts';
import { FOREIGN_KEY_VIOLATION, sqlState } from '../db/errors.ts';
import type { Catalog } from '../model/catalog.ts';
import { parseBody } from './json-fields.ts';
import { requireBox } from './signing-keys.ts';
import { issueToken, MAX_TOKEN_TTL_SECONDS, revokeToken, revokeUserTokens } from './tokens.ts';

export interface TokenControlDeps {
  db: Database;
  /** Null without a master key: tokens cannot be issued (409). */
  box: SecretBox | null;
  /** The catalogue in use. */
  catalog(): Catalog;
  /** Loads what is committed into the catalogue of this replica. */
  refresh(): Promise<void>;
}

const nameOrId = z.string('must be a name or an id').regex(/^[A-Za-z0-9._-]{1,128}$/, 'must be a name or an id');
const ttlFault = `must be a whole number of seconds from 1 to ${MAX_TOKEN_TTL_SECONDS}`;

/** The body of `POST /tokens` ("Control API" in docs/spec/native-api.md). */
const tokenBody = z.strictObject({
  user: nameOrId,
  project: nameOrId.optional(),
  ttl: z.int(ttlFault).min(1, ttlFault).max(MAX_TOKEN_TTL_SECONDS, ttlFault),
});

/**
 * `POST /tokens`, 201: issues a token, which is shown only once. Throws 400 for a faulty body, and for a user or
 * project that does not exist or is disabled, because such a token could not be used.
 */
export async function createToken(
  body: unknown,
  deps: TokenControlDeps,
): Promise<{ token: string; jti: string; expiresAt: string }> {
  const { user: userRef, project: projectRef, ttl } = parseBody(tokenBody, body);
  const user = await lookUp(deps, (catalog) => byNameOrId(catalog.users, userRef));
  if (user === undefined) throw new ApiError('invalid_value', `user: "${userRef}" does not exist`, { param: 'user' });
  if (!user.enabled) throw new ApiError('invalid_value', `user: "${userRef}" is disabled`, { param: 'user' });
  const project =
    projectRef === undefined ? null : await lookUp(deps, (catalog) => byNameOrId(catalog.projects, projectRef));
  if (project === undefined) {
    throw new ApiError('invalid_value', `project: "${projectRef}" does not exist`, { param: 'project' });
  }
  const issued = await issueToken(deps.db, requireBox(deps.box), {
    userId: user.id,
    projectId: project?.id ?? null,
    ttlSeconds: ttl,
  });
  return { ...issued, expiresAt: new Date(issued.expiresAt).toISOString() };
}

/** `DELETE /tokens/{jti}`, 204, also for a repeat. Throws 404 for an id that was never issued or expired long ago. */
export async function deleteToken(jti: string, deps: TokenControlDeps): Promise<void> {
  const id = jti.toLowerCase();
  if (!isUuid(id) || !(await revokeToken(deps.db, id))) throw new ApiError('not_found');
  await deps.refresh();
}

/** `POST /users/by-id/{id}/revoke-tokens`, 200, also for a disabled user. Throws 404 for an unknown user. */
export async function revokeTokensOfUser(
  userId: string,
  deps: TokenControlDeps,
): Promise<{ id: string; tokenVersion: number }> {
  const user = await lookUp(deps, (catalog) => catalog.usersById.get(userId.toLowerCase()));
  if (user === undefined) throw new ApiError('not_found');
  const tokenVersion = await revokeUserTokens(deps.db, user.id).catch((cause: unknown) => {
    // The user was deleted after the catalogue was loaded: the row of the version refers to the row of the user.
    throw sqlState(cause) === FOREIGN_KEY_VIOLATION ? new ApiError('not_found', undefined, { cause }) : cause;
  });
  await deps.refresh();
  return { id: user.id, tokenVersion };
}

/** Refreshes the catalogue once if the object is missing: another replica may have made it a moment ago. */
async function lookUp<T>(deps: TokenControlDeps, find: (catalog: Catalog) => T | undefined): Promise<T | undefined> {
  const found = find(deps.catalog());
  if (found !== undefined) return found;
  await deps.refresh();
  return find(deps.catalog());
}

/** A name wins over an id of the same text. */
function byNameOrId<T extends { id: string }>(byName: ReadonlyMap<string, T>, ref: string): T | undefined {
  const named = byName.get(ref);
  if (named !== undefined || !isUuid(ref.toLowerCase())) return named;
  return [...byName.values()].find((one) => one.id === ref.toLowerCase());
}
