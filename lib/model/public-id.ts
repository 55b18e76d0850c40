/** Writes 32 hex digits in the form of a UUID. */
export function uuidOfHex(hex: string): string {
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`;
}

/** The 32 hex digits of a UUID. */
export function hexOfUuid(uuid: string): string {
  return uuid.replaceAll('-', '');
}

/** How the objects of one kind are named to callers: a prefix, and the 32 hex digits of the UUID. */
export interface PublicIds {
  of(uuid: string): string;
  /** The UUID in a public id; null for text of any other form, capitals included. */
  parse(id: string): string | null;
}

/** Makes the public ids of one kind. */
export function publicIds(prefix: string): PublicIds {
  return {
    of: (uuid) => prefix + hexOfUuid(uuid),
    parse(id) {
      const hex = id.slice(prefix.length);
      return id.startsWith(prefix) && /^[0-9a-f]{32}$/.test(hex) ? uuidOfHex(hex) : null;
    },
  };
}
