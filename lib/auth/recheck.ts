import type { Attribution } from '../model/batch.ts';
import type { Catalog, Policy } from '../model/catalog.ts';
import { type CredentialVerdict, judgeKey, judgeToken, type KeyFault, type TokenFault } from './credential.ts';

/** The facts of its credential that a batch records. */
export type BatchCredential = Pick<
  Attribution,
  'owner' | 'credentialKind' | 'credentialId' | 'principalId' | 'tokenExpiresAt' | 'tokenVersion'
>;

/**
 * `reason` is the text after `credential no longer valid: ` ("Credential check when an item runs" in
 * docs/spec/gateway-rules.md).
 */
export type Recheck = { ok: true; validUntilMs: number } | { ok: false; reason: string };

const KEY_REASONS: Record<KeyFault, string> = {
  disabled: 'api key disabled',
  revoked: 'api key revoked',
  expired: 'api key expired',
  rotated: 'api key rotated',
  user_disabled: 'user disabled',
  service_account_disabled: 'api key disabled',
};
const TOKEN_REASONS: Record<TokenFault, string> = {
  expired: 'token expired',
  revoked: 'token revoked',
  user_disabled: 'user disabled',
};

/**
 * Checks whether the credential that submitted this batch is still valid at `nowMs` (shared time); the check runs as
 * each item starts. It finds a key by its id, so a key that was deleted and made again under the same name is `api key
 * deleted`. The owner hash is the presented value. If it is neither the key's present one nor its previous one within
 * grace, the key is `api key rotated`.
 *
 * All items of the batch may share the result while they use the same Catalog object. A valid result holds until
 * `validUntilMs` (exclusive; Infinity if only a new catalogue can end it). An invalid result stays.
 */
export function recheckCredential(batch: BatchCredential, catalog: Catalog, nowMs: number): Recheck {
  if (batch.credentialKind === 'key') {
    const key = catalog.keysById.get(batch.credentialId);
    if (key === undefined) return { ok: false, reason: 'api key deleted' };
    return toRecheck(judgeKey(key, batch.owner, catalog, nowMs), KEY_REASONS);
  }
  const token = {
    jti: batch.credentialId,
    userId: batch.principalId ?? '',
    expiresAt: batch.tokenExpiresAt ?? 0,
    version: batch.tokenVersion ?? -1,
  };
  return toRecheck(judgeToken(token, catalog, nowMs), TOKEN_REASONS);
}

function toRecheck<Fault extends string>(verdict: CredentialVerdict<Fault>, reasons: Record<Fault, string>): Recheck {
  return 'validUntilMs' in verdict
    ? { ok: true, validUntilMs: verdict.validUntilMs }
    : { ok: false, reason: reasons[verdict.fault] };
}

/**
 * Returns the policy recorded at submit, as it is now; it governs every item of the batch. The lookup is by id: a
 * policy deleted and made again under the same name is `policy_not_found`. At most two map look-ups: no cache.
 */
export function policyOf(
  batch: Pick<Attribution, 'policyId'>,
  catalog: Catalog,
): Policy | 'policy_not_found' | 'policy_disabled' {
  const policy = batch.policyId === null ? undefined : catalog.policiesById.get(batch.policyId);
  if (policy === undefined) return 'policy_not_found';
  return policy.enabled ? policy : 'policy_disabled';
}
