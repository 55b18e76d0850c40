import { type KeyControlDeps, revokeKey, rotateKey } from '../lib/auth/control-keys.ts';
import { createToken, deleteToken, revokeTokensOfUser, type TokenControlDeps } from '../lib/auth/control-tokens.ts';
import { type ObjectView, readKeyView } from '../lib/catalog/view.ts';
import { jsonBody } from '../lib/http/control-body.ts';
import { pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { adminEndpoint } from './admin.ts';
import type { ObjectsApp } from './control-objects.ts';
import type { Endpoint } from './endpoint.ts';

/** The parts of the application that the endpoints of keys and tokens use. */
export interface CredentialsApp extends ObjectsApp {
  /** Cryptographically random bytes (`Clock.random`). */
  random(n: number): Buffer;
}

/** A few names and numbers. */
const MAX_BODY_BYTES = 16 * 1024;

const rotateKeyEndpoint = adminEndpoint(
  { method: 'POST', pattern: '/api/keys/by-id/{id}/rotate', body: 'read', maxBytes: MAX_BODY_BYTES },
  async (app: CredentialsApp, event) =>
    json(200, await rotateKey(pathParameter(event, 'id'), jsonBody(event, true), keyDeps(app))),
);

const revokeKeyEndpoint = adminEndpoint(
  { method: 'POST', pattern: '/api/keys/by-id/{id}/revoke' },
  async (app: CredentialsApp, event) => json(200, await revokeKey(pathParameter(event, 'id'), keyDeps(app))),
);

const createTokenEndpoint = adminEndpoint(
  { method: 'POST', pattern: '/api/tokens', body: 'read', maxBytes: MAX_BODY_BYTES },
  async (app: CredentialsApp, event) => json(201, await createToken(jsonBody(event), tokenDeps(app))),
);

const deleteTokenEndpoint = adminEndpoint(
  { method: 'DELETE', pattern: '/api/tokens/{jti}' },
  async (app: CredentialsApp, event) => {
    await deleteToken(pathParameter(event, 'jti'), tokenDeps(app));
    return { statusCode: 204, headers: {} };
  },
);

const revokeTokensOfUserEndpoint = adminEndpoint(
  { method: 'POST', pattern: '/api/users/by-id/{id}/revoke-tokens' },
  async (app: CredentialsApp, event) => json(200, await revokeTokensOfUser(pathParameter(event, 'id'), tokenDeps(app))),
);

export const CREDENTIAL_ENDPOINTS: readonly Endpoint<CredentialsApp>[] = [
  rotateKeyEndpoint,
  revokeKeyEndpoint,
  createTokenEndpoint,
  deleteTokenEndpoint,
  revokeTokensOfUserEndpoint,
];

function keyDeps(app: CredentialsApp): KeyControlDeps<ObjectView> {
  return { db: app.db, random: app.random, readKey: readKeyView, refresh: app.catalogCache.refresh };
}

function tokenDeps(app: CredentialsApp): TokenControlDeps {
  return { db: app.db, box: app.secretBox, catalog: app.catalogCache.current, refresh: app.catalogCache.refresh };
}
