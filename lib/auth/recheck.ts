import type { Attribution } from '../model/batch.ts';
import type { Catalog, Policy } from '../model/catalog.ts';
import { judgeKey, judgeToken, type KeyFault, type TokenFault, type Verdict } from './credential.ts';

/** What a batch keeps of the credential that submitted it. */
export type BatchCredential = Pick<
  Attribution,
  'owner' | 'credentialKind' | 'credentialId' | 'principalId' | 'tokenExpiresAt' | 'tokenVersion'
>;

/** `reason` is the text after `credential no longer valid: ` (behaviour section 7). */
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
 * Is the credential that submitted this batch still good at `nowMs` (shared time)? Asked as each item starts. A key is
 * found by its id, so one that was deleted and made again under the same name is `api key deleted`. The owner hash is
 * the presented value: once it is neither the key's present one nor its previous one within grace, `api key rotated`.
 *
 * The result may be kept for all items of the batch with the same Catalog object: a good one until `validUntilMs`
 * (exclusive; Infinity when only a new catalogue can end it), a bad one for good.
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

function toRecheck<Fault extends string>(verdict: Verdict<Fault>, reasons: Record<Fault, string>): Recheck {
  return 'validUntilMs' in verdict
    ? { ok: true, validUntilMs: verdict.validUntilMs }
    : { ok: false, reason: reasons[verdict.fault] };
}

/**
 * The policy recorded at submit, as it is now; it governs every item of the batch. By id: a policy deleted and made
 * again under the same name is `policy_not_found`. Two map look-ups at most, nothing to cache.
 */
export function policyOf(
  batch: Pick<Attribution, 'policyId'>,
  catalog: Catalog,
): Policy | 'policy_not_found' | 'policy_disabled' {
  const policy = batch.policyId === null ? undefined : catalog.policiesById.get(batch.policyId);
  if (policy === undefined) return 'policy_not_found';
  return policy.enabled ? policy : 'policy_disabled';
}
