import { ApiError } from '../base/errors.ts';
import type { Attribution } from '../model/batch.ts';
import type { Catalog, Policy } from '../model/catalog.ts';
import type { Caller } from './authenticate.ts';

/**
 * Returns the policy that governs a submit of this caller: the key's own, else its service account's, else the
 * project's. Throws 403 `policy_disabled` if the first that exists is disabled; it does not try a later one. Throws 403
 * `no_policy` if none exists. Only submits need it.
 */
export function governingPolicy(caller: Caller, catalog: Catalog): Policy {
  const named = [caller.keyPolicy, caller.serviceAccount?.policy, caller.project?.policy];
  for (const name of named) {
    const policy = name ? catalog.policies.get(name) : undefined;
    if (policy === undefined) continue;
    if (!policy.enabled) throw new ApiError('policy_disabled');
    return policy;
  }
  throw new ApiError('no_policy');
}

/**
 * Returns the attribution that a batch of this caller records. The project is the service account's or the token's,
 * else the one that owns the policy; the team is that project's. A project or team that was deleted is null.
 */
export function attributionOf(caller: Caller, policy: Policy, catalog: Catalog): Attribution {
  const project = caller.project ?? (policy.project ? (catalog.projects.get(policy.project) ?? null) : null);
  const team = project?.team ? catalog.teams.get(project.team) : undefined;
  return {
    owner: caller.owner,
    policyId: policy.id,
    policy: policy.name,
    projectId: project?.id ?? null,
    project: project?.name ?? null,
    teamId: team?.id ?? null,
    team: team?.name ?? null,
    principalKind: caller.principalKind,
    principalId: caller.principalId,
    credentialKind: caller.credentialKind,
    credentialId: caller.credentialId,
    tokenExpiresAt: caller.tokenExpiresAt,
    tokenVersion: caller.tokenVersion,
  };
}
