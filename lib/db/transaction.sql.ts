/**
 * The frame of a transaction. Its statements are texts alone and never prepared: each is shorter than the name of a
 * prepared statement would be, and behind a pooler nothing is prepared.
 */
export const TRANSACTION = { begin: 'begin', commit: 'commit', rollback: 'rollback' } as const;

/** Lets one transaction scan whole tables, which the connection's options forbid (OLTP_OPTIONS in database.ts). */
export const ALLOW_SEQSCAN = { name: 'allow_seqscan', text: 'set local enable_seqscan = on', values: [] } as const;
