import type { Socket } from 'node:net';
import type pg from 'pg';
import type { buildConnector } from 'undici';

// Sockets that drivers keep to themselves. `test/integration/runtime/sockets.test.ts` fails when a driver changes.

/**
 * The socket of a client of pg. Nothing that pg offers tells that bytes arrived, and its `end` waits for an answer. TCP
 * itself takes a quarter of an hour to give up a connection that a firewall forgot; by its socket one is closed after
 * the statement's limit (15 s for a worker).
 */
export function socketOf(client: pg.ClientBase): Socket {
  return (client as unknown as { connection: { stream: Socket } }).connection.stream;
}

/**
 * The socket that a connector of undici returns, whatever its type says. undici cannot abort a dial: after `destroy` of
 * its client, the socket of a dial to a host that does not answer stays open until the connect timeout.
 */
export function dialedBy(returned: ReturnType<ReturnType<typeof buildConnector>>): Socket {
  return returned as unknown as Socket;
}

/** `HTTP/1.1 100 `; the minor version may be another. */
const CONTINUE = Buffer.from('HTTP/1.1 100 ');
const MINOR_VERSION = 7;
const HEAD_END = Buffer.from('\r\n\r\n');
/** An interim head is one line, and hardly a header. */
const MAX_INTERIM_BYTES = 64 * 1024;

/**
 * Takes heads of `100 Continue` out of what a socket reads. undici calls them a fault of the server and ends the connection,
 * although a client has to read over them (RFC 9110 section 15.2). `awaitsHead` says whether an answer begins next.
 */
export function skipContinue(socket: Socket, awaitsHead: () => boolean): void {
  const read = socket.read.bind(socket) as (size?: number) => Buffer | null;
  let held: Buffer | null = null;
  socket.read = (size) => {
    // Streams read 0 bytes of themselves to fill their buffers.
    if (size !== undefined) return read(size);
    for (;;) {
      const chunk = read();
      if (chunk === null || !awaitsHead()) return chunk;
      const bytes: Buffer = held === null ? chunk : Buffer.concat([held, chunk]);
      held = null;
      const rest = behindContinue(bytes);
      if (rest === null) held = bytes;
      else if (rest.length > 0) return rest;
    }
  };
}

/** The bytes behind all interim heads at the start; null when the last of these may continue in the next chunk. */
function behindContinue(bytes: Buffer): Buffer | null {
  let rest = bytes;
  while (mayBeContinue(rest)) {
    const end = rest.indexOf(HEAD_END);
    if (end < 0) return rest.length > MAX_INTERIM_BYTES || rest.length === 0 ? rest : null;
    rest = rest.subarray(end + HEAD_END.length);
  }
  return rest;
}

function mayBeContinue(bytes: Buffer): boolean {
  const length = Math.min(bytes.length, CONTINUE.length);
  for (let at = 0; at < length; at++) if (at !== MINOR_VERSION && bytes[at] !== CONTINUE[at]) return false;
  return true;
}
