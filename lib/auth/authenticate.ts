import { timingSafeEqual } from 'node:crypto';
import { ApiError } from '../base/errors.ts';
import type { Catalog, Project, RelayKey, ServiceAccount } from '../model/catalog.ts';
import { judgeKey, judgeToken, type KeyFault, type TokenFault } from './credential.ts';
import { hashKey } from './keys.ts';

/** The claims of a genuine inference token; times in epoch ms. */
export interface TokenClaims {
  jti: string;
  userId: string;
  expiresAt: number;
  version: number;
  /** The project id of the `prj` claim; null without one. */
  projectId: string | null;
}

/**
 * Checks a token's signature, issuer and form and returns its claims. The caller judges expiry and revocation. Throws
 * ApiError `invalid_token`. `catalogVersion` is that of the catalogue in use: the signing keys are at least as new.
 */
export interface TokenVerifier {
  verify(token: string, catalogVersion: number): Promise<TokenClaims>;
}

export interface AuthenticateDeps {
  /** Epoch ms of shared time: the database's clock, or this host's corrected by the last known offset. */
  nowMs: number;
  tokens: TokenVerifier;
}

/** The caller, as its credential describes it. It is enough for reads; a submit also needs `governingPolicy`. */
export interface Caller {
  /** The sha256 hex of the presented key, or `user:<id>` for a token. */
  owner: string;
  credentialKind: 'key' | 'token';
  /** The key's id, or the token's jti. */
  credentialId: string;
  principalKind: 'user' | 'serviceaccount' | null;
  principalId: string | null;
  /** The policy name on the key itself; null without one and for tokens. */
  keyPolicy: string | null;
  serviceAccount: ServiceAccount | null;
  /** The project of the service account or of the token; null without one, or if it was deleted. */
  project: Project | null;
  /** The `exp` of a token in epoch ms, and its version; null for a key. */
  tokenExpiresAt: number | null;
  tokenVersion: number | null;
}

/** Header names are in lower case, as events and Node deliver them. */
export type Headers = Readonly<Record<string, string | undefined>>;

/** No 401 code names a principal: a disabled principal disables its credentials. */
const KEY_CODES = {
  disabled: 'api_key_disabled',
  revoked: 'api_key_revoked',
  expired: 'api_key_expired',
  rotated: 'api_key_rotated',
  user_disabled: 'api_key_disabled',
  service_account_disabled: 'api_key_disabled',
} as const satisfies Record<KeyFault, string>;
const TOKEN_CODES = {
  expired: 'token_expired',
  revoked: 'token_revoked',
  user_disabled: 'token_revoked',
} as const satisfies Record<TokenFault, string>;

/**
 * Authenticates a request. The credential is the first of `X-WR-API-Key`, `Authorization: Bearer`, `x-api-key` and `api-key` (Azure's clients) that
 * is not empty. Throws ApiError 401 with a code and text of "Authentication failures" in docs/spec/gateway-rules.md.
 * `judgeKey` and `judgeToken` document which fault wins when there are several. Reads need no policy, so this function
 * does not check for one.
 */
export async function authenticate(headers: Headers, catalog: Catalog, deps: AuthenticateDeps): Promise<Caller> {
  const presented = presentedSecret(headers);
  if (presented === null) throw new ApiError('missing_api_key');
  return isToken(presented)
    ? authenticateToken(presented, catalog, deps)
    : authenticateKey(presented, catalog, deps.nowMs);
}

/** Ignores an empty header and an `Authorization` of another scheme: proxies and SDKs leave such headers behind. */
function presentedSecret(headers: Headers): string | null {
  const own = headers['x-wr-api-key']?.trim();
  if (own) return own;
  const bearer = /^bearer +(\S.*)$/i.exec(headers.authorization?.trim() ?? '')?.[1];
  if (bearer) return bearer;
  return headers['x-api-key']?.trim() || headers['api-key']?.trim() || null;
}

/** A token starts with `ey` (the base64url of `{"`) and has exactly two dots. Anything else is looked up as a key. */
function isToken(text: string): boolean {
  if (!text.startsWith('ey')) return false;
  const first = text.indexOf('.');
  const second = first < 0 ? -1 : text.indexOf('.', first + 1);
  return second >= 0 && text.indexOf('.', second + 1) < 0;
}

function authenticateKey(plaintext: string, catalog: Catalog, nowMs: number): Caller {
  const hash = hashKey(plaintext);
  const key = catalog.keysByHash.get(hash);
  if (key === undefined || !holdsHash(key, hash)) throw new ApiError('invalid_api_key');
  const { fault } = judgeKey(key, hash, catalog, nowMs);
  if (fault !== null) throw new ApiError(KEY_CODES[fault]);

  const serviceAccount =
    key.principal?.kind === 'serviceaccount' ? (catalog.serviceAccounts.get(key.principal.name) ?? null) : null;
  const user = key.principal?.kind === 'user' ? catalog.users.get(key.principal.name) : undefined;
  return {
    owner: hash,
    credentialKind: 'key',
    credentialId: key.id,
    principalKind: key.principal?.kind ?? null,
    principalId: serviceAccount?.id ?? user?.id ?? null,
    keyPolicy: key.policy ?? null,
    serviceAccount,
    project: serviceAccount ? (catalog.projects.get(serviceAccount.project) ?? null) : null,
    tokenExpiresAt: null,
    tokenVersion: null,
  };
}

/** The map found the hash. This check compares it in constant time, whatever the map's own comparison leaks. */
function holdsHash(key: RelayKey, hash: string): boolean {
  const presented = Buffer.from(hash, 'latin1');
  const holds = (stored: string | undefined) =>
    stored?.length === hash.length && timingSafeEqual(Buffer.from(stored, 'latin1'), presented);
  return holds(key.hash) || holds(key.previousHash);
}

async function authenticateToken(token: string, catalog: Catalog, deps: AuthenticateDeps): Promise<Caller> {
  const claims = await deps.tokens.verify(token, catalog.version);
  const { fault } = judgeToken(claims, catalog, deps.nowMs);
  if (fault !== null) throw new ApiError(TOKEN_CODES[fault]);
  return {
    owner: `user:${claims.userId}`,
    credentialKind: 'token',
    credentialId: claims.jti,
    principalKind: 'user',
    principalId: claims.userId,
    keyPolicy: null,
    serviceAccount: null,
    project: claims.projectId === null ? null : (projectsById(catalog).get(claims.projectId) ?? null),
    tokenExpiresAt: claims.expiresAt,
    tokenVersion: claims.version,
  };
}

// A token names its project by id: a new project under an old name must not inherit the old project's tokens.
const projectIndexes = new WeakMap<Catalog, ReadonlyMap<string, Project>>();

function projectsById(catalog: Catalog): ReadonlyMap<string, Project> {
  let index = projectIndexes.get(catalog);
  if (index === undefined) {
    index = new Map([...catalog.projects.values()].map((project) => [project.id, project]));
    projectIndexes.set(catalog, index);
  }
  return index;
}
