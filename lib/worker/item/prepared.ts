import type { Turn } from '../../keypool/select.ts';
import type { Refund } from '../../limits/settle.ts';
import type { HostKey } from '../../model/catalog.ts';
import type { Judged } from './judge.ts';

/** An item that only needs a slot: judged, its turn drawn, its limits reserved. */
export interface Ready extends Judged {
  turn: Turn | null;
  /** What was reserved; null when that waits for the slot (`concurrency` counts items in slots, not in the queue). */
  reserved: Reservation | null;
}

export interface Reservation extends Refund {
  /** The key whose tier rules are part of it; null when no key can be drawn at present. */
  key: HostKey | null;
}
