import { type KeyControlDeps, revokeKey, rotateKey } from '../lib/auth/control-keys.ts';
import { createToken, deleteToken, revokeTokensOfUser, type TokenControlDeps } from '../lib/auth/control-tokens.ts';
import { type ObjectView, readKeyView } from '../lib/catalog/view.ts';
import { jsonBody } from '../lib/http/control-body.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { admin } from './admin.ts';
import type { ObjectsApp } from './control-objects.ts';

/** What the routes of keys and tokens need. */
export interface CredentialsApp extends ObjectsApp {
  /** Cryptographically random bytes (`Clock.random`). */
  random(n: number): Buffer;
}

/** `POST /api/keys/by-id/{id}/rotate` */
export function rotate(app: CredentialsApp): ApiHandler {
  return admin(app, async (event) =>
    json(200, await rotateKey(pathParameter(event, 'id'), jsonBody(event, true), keyDeps(app))),
  );
}

/** `POST /api/keys/by-id/{id}/revoke` */
export function revoke(app: CredentialsApp): ApiHandler {
  return admin(app, async (event) => json(200, await revokeKey(pathParameter(event, 'id'), keyDeps(app))));
}

/** `POST /api/tokens` */
export function issue(app: CredentialsApp): ApiHandler {
  return admin(app, async (event) => json(201, await createToken(jsonBody(event), tokenDeps(app))));
}

/** `DELETE /api/tokens/{jti}` */
export function revokeOne(app: CredentialsApp): ApiHandler {
  return admin(app, async (event) => {
    await deleteToken(pathParameter(event, 'jti'), tokenDeps(app));
    return { statusCode: 204, headers: {} };
  });
}

/** `POST /api/users/by-id/{id}/revoke-tokens` */
export function revokeAll(app: CredentialsApp): ApiHandler {
  return admin(app, async (event) => json(200, await revokeTokensOfUser(pathParameter(event, 'id'), tokenDeps(app))));
}

function keyDeps(app: CredentialsApp): KeyControlDeps<ObjectView> {
  return { db: app.db, random: app.random, readKey: readKeyView, refresh: app.catalogCache.refresh };
}

function tokenDeps(app: CredentialsApp): TokenControlDeps {
  return { db: app.db, box: app.secretBox, catalog: app.catalogCache.current, refresh: app.catalogCache.refresh };
}
