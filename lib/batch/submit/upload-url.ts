import { createHmac, timingSafeEqual } from 'node:crypto';

export interface SignedUpload {
  id: string;
  bytes: number;
}

/**
 * The part of an upload's URL that follows the origin: id and length, signed with the database's secret, so that a PUT
 * needs no credential and can be of no other length. When it ends is the database's to say.
 */
export function uploadPath(secret: Buffer, upload: SignedUpload): string {
  return `/v1/uploads/${upload.id}?bytes=${upload.bytes}&signature=${sign(secret, upload).toString('hex')}`;
}

/** True when the signature of a URL is that of this upload. */
export function isSigned(secret: Buffer, upload: SignedUpload, signature: string): boolean {
  const given = Buffer.from(signature, 'hex');
  const right = sign(secret, upload);
  return given.length === right.length && timingSafeEqual(given, right);
}

function sign(secret: Buffer, { id, bytes }: SignedUpload): Buffer {
  return createHmac('sha256', secret).update(`upload ${id} ${bytes}`).digest();
}
