import { reasonOf } from '../base/errors.ts';

/**
 * The faults that a person must fix, by the name of the SDK's error. Everything else passes by itself and is waited
 * for: throttling, 5xx, a server that does not answer, credentials of a role that have just expired.
 */
const CONFIG_FAULTS: Readonly<Record<string, string>> = {
  NoSuchBucket: 'there is no such bucket',
  InvalidBucketName: 'this is not a bucket name',
  InvalidAccessKeyId: 'the access key id is unknown',
  SignatureDoesNotMatch: 'the secret access key is wrong',
  InvalidClientTokenId: 'the access key id is unknown',
  UnrecognizedClientException: 'the credentials are not valid',
  AccessDenied: 'access is denied',
  Forbidden: 'access is denied',
  AllAccessDisabled: 'access is denied',
  PermanentRedirect: 'the bucket is in another region than AWS_REGION',
  AuthorizationHeaderMalformed: 'the bucket is in another region than AWS_REGION',
  CredentialsProviderError: 'no AWS credentials were found',
};

/** Returns why the configuration is wrong, as the end of a sentence; null if the error may pass by itself. */
export function configFaultOf(error: unknown): string | null {
  const known = CONFIG_FAULTS[faultName(error)];
  if (known !== undefined) return known;
  return reasonOf(error) === 'Region is missing' ? 'AWS_REGION is not set' : null;
}

/** Returns the error's short name, the SDK's (`SlowDown`) or the system's (`EPIPE`). A message may hold a URL. */
export function faultName(error: unknown): string {
  const { name, Code, code } = (error ?? {}) as { name?: unknown; Code?: unknown; code?: unknown };
  for (const one of [Code, code, name]) if (typeof one === 'string' && one !== '' && one !== 'Error') return one;
  return 'unknown';
}

/** True if the object is missing. A missing bucket is another fault. */
export function isNotFound(error: unknown): boolean {
  const name = faultName(error);
  return name === 'NoSuchKey' || name === 'NotFound';
}

/** True if the range begins behind the end of the object. */
export function isShort(error: unknown): boolean {
  return faultName(error) === 'InvalidRange';
}
