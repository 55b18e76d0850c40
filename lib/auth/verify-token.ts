import { createPublicKey, type KeyObject } from 'node:crypto';
import { compactVerify, decodeProtectedHeader } from 'jose';
import { z } from 'zod';
import { ApiError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { SecretBox } from '../catalog/secrets/secret-box.ts';
import type { Db } from '../db/database.ts';
import type { TokenClaims, TokenVerifier } from './authenticate.ts';
import { openSigningKey } from './signing-keys.ts';
import { readSigningKeys } from './tokens.sql.ts';

export interface TokenVerifierDeps {
  db: Db;
  /** Null without a master key: every token is then invalid. */
  box: SecretBox | null;
  log: Log;
  /** Local monotonic milliseconds (`Clock.monotonic`). */
  monotonic(): number;
}

/** The claims as they are written, with `exp` in seconds. A token may have others. */
const claimsSchema = z.object({
  iss: z.literal('relay'),
  sub: z.uuid(),
  jti: z.uuid(),
  exp: z.int().positive(),
  ver: z.int().nonnegative(),
  prj: z.uuid().optional(),
});

/** The shortest time between two loads after a failed load or for an unknown `kid`, however many tokens arrive. */
const RELOAD_EVERY_MS = 1000;

/**
 * Makes a verifier that checks tokens against the signing keys in memory, without a query per request. It reads the
 * keys again for an unknown `kid`, and for a catalogue version newer than that of the last read: every change of the
 * keys raises it. While Postgres is unavailable the keys in memory continue to verify. If no keys are loaded at all, it
 * throws 503 `not_ready`.
 */
export function createTokenVerifier(deps: TokenVerifierDeps): TokenVerifier {
  let keys = new Map<string, KeyObject>();
  let loadedVersion = -1;
  let lastTry = Number.NEGATIVE_INFINITY;
  let failure: unknown = null;
  let loading: Promise<void> | null = null;

  const load = async (box: SecretBox, version: number): Promise<void> => {
    lastTry = deps.monotonic();
    try {
      keys = await loadPublicKeys(deps.db, box, deps.log);
      loadedVersion = Math.max(loadedVersion, version);
      failure = null;
    } catch (error) {
      failure = error;
      deps.log.warn({ err: reasonOf(error) }, 'token signing keys could not be read');
    }
  };
  /** One load runs at a time. A load that began for an older version may miss the newer key; another follows it. */
  const loadOnce = async (box: SecretBox, version: number): Promise<void> => {
    if (loading !== null) await loading;
    if (loadedVersion >= version && failure === null) return;
    loading ??= load(box, version).finally(() => (loading = null));
    await loading;
  };
  /** A call may join a load that is under way. A new load starts at most once in `RELOAD_EVERY_MS`. */
  const mayLoad = () => loading !== null || deps.monotonic() - lastTry >= RELOAD_EVERY_MS;

  return {
    async verify(token, catalogVersion) {
      const kid = kidOf(token);
      if (deps.box === null) throw new ApiError('invalid_token');
      if (catalogVersion > loadedVersion && (failure === null || mayLoad())) await loadOnce(deps.box, catalogVersion);
      if (!keys.has(kid) && mayLoad()) {
        loading ??= load(deps.box, catalogVersion).finally(() => (loading = null));
        await loading;
      }
      const key = keys.get(kid);
      if (key === undefined) {
        if (failure !== null) throw new ApiError('not_ready', undefined, { cause: failure });
        throw new ApiError('invalid_token');
      }
      return readClaims(token, key);
    },
  };
}

async function loadPublicKeys(db: Db, box: SecretBox, log: Log): Promise<Map<string, KeyObject>> {
  const keys = new Map<string, KeyObject>();
  for (const row of await readSigningKeys(db)) {
    try {
      keys.set(row.kid, createPublicKey(openSigningKey(row, box).privateKey));
    } catch (error) {
      // The tokens of this key are invalid here. Those of the other key stay valid.
      log.error({ kid: row.kid, err: reasonOf(error) }, 'token signing key could not be opened');
    }
  }
  return keys;
}

/** Returns the key id of the header. The algorithm is not the token's choice: anything except EdDSA is rejected. */
function kidOf(token: string): string {
  try {
    const header = decodeProtectedHeader(token);
    if (header.alg === 'EdDSA' && typeof header.kid === 'string') return header.kid;
  } catch (cause) {
    throw new ApiError('invalid_token', undefined, { cause });
  }
  throw new ApiError('invalid_token');
}

async function readClaims(token: string, key: KeyObject): Promise<TokenClaims> {
  try {
    const { payload } = await compactVerify(token, key, { algorithms: ['EdDSA'] });
    const claims = claimsSchema.parse(JSON.parse(new TextDecoder().decode(payload)));
    return {
      jti: claims.jti,
      userId: claims.sub,
      expiresAt: claims.exp * 1000,
      version: claims.ver,
      projectId: claims.prj ?? null,
    };
  } catch (cause) {
    throw new ApiError('invalid_token', undefined, { cause });
  }
}
