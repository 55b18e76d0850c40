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
