import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { connect, createServer, type Socket } from 'node:net';

/** The connections to cut: at the answer to the first `times` statements of this name (or text). */
export interface Cut {
  statement: string;
  /** Only on connections that sent this before. */
  after?: string;
  times: number;
}

/** Stands between the service and Postgres, and loses things on the way. */
export interface PostgresProxy {
  /** The given DSN with the proxy's address. */
  dsn: string;
  /**
   * Lets Postgres run a statement to its end, swallows the whole answer and closes the connection: the service cannot
   * know its outcome. Resolves when that has happened `times` times.
   */
  cutAnswers(cut: Cut): Promise<void>;
  /**
   * Holds the next statement of this name back for so long (a server that stood still), then delivers it, although the
   * service has given its connection up by then. Resolves when Postgres has answered it.
   */
  deliverLate(statement: string, ms: number): Promise<void>;
  /** From now on the present connections carry nothing, and neither side hears of it: a firewall treats idle ones so. */
  fallSilent(): void;
  close(): Promise<void>;
}

/** Every answer ends in ReadyForQuery, the last byte of which says whether a transaction is open. */
const READY = 'Z\0\0\0\x05';

/** Starts a proxy for a DSN with a TCP host or a socket directory. */
export async function startProxy(dsn: string): Promise<PostgresProxy> {
  const target = new URL(dsn);
  const upstream = addressOf(target);
  const cuts: (Cut & { done(): void })[] = [];
  const late: { statement: string; ms: number; done(): void }[] = [];
  const pairs = new Set<{ client: Socket; server: Socket; silent: boolean }>();

  const proxy = createServer({ noDelay: true }, (client) => {
    const server = connect(upstream);
    const pair = { client, server, silent: false };
    pairs.add(pair);
    let sent = '';
    let cutting: (typeof cuts)[number] | null = null;
    let swallowed = '';
    const end = () => {
      client.destroy();
      server.destroy();
      pairs.delete(pair);
    };
    for (const socket of [client, server]) {
      socket.on('error', end);
      socket.on('close', () => {
        if (!pair.silent) end();
      });
    }
    client.on('data', (chunk: Buffer) => {
      if (pair.silent) return;
      const text = chunk.toString('latin1');
      const held = late.findIndex(({ statement }) => text.includes(statement));
      if (held >= 0) {
        const [{ ms, done }] = late.splice(held, 1) as [(typeof late)[number]];
        pair.silent = true;
        server.on('data', done);
        setTimeout(() => server.write(chunk), ms).unref();
        return;
      }
      cutting ??= cuts.find((cut) => text.includes(cut.statement) && sent.includes(cut.after ?? '')) ?? null;
      if (cuts.some((cut) => cut.after !== undefined)) sent += text;
      server.write(chunk);
    });
    server.on('data', (chunk: Buffer) => {
      if (pair.silent) return;
      if (cutting === null) {
        client.write(chunk);
        return;
      }
      swallowed = (swallowed + chunk.toString('latin1')).slice(-32);
      if (!swallowed.slice(0, -1).endsWith(READY)) return;
      end();
      if (--cutting.times > 0) return;
      cuts.splice(cuts.indexOf(cutting), 1);
      cutting.done();
    });
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  target.host = `127.0.0.1:${(proxy.address() as AddressInfo).port}`;

  return {
    dsn: target.href,
    cutAnswers: (cut) => new Promise((resolve) => cuts.push({ ...cut, done: resolve })),
    deliverLate: (statement, ms) => new Promise((resolve) => late.push({ statement, ms, done: resolve })),
    fallSilent() {
      for (const pair of pairs) pair.silent = true;
    },
    async close() {
      proxy.close();
      for (const { client, server } of pairs) {
        client.destroy();
        server.destroy();
      }
    },
  };
}

function addressOf({ hostname, port }: URL): { path: string } | { host: string; port: number } {
  const host = decodeURIComponent(hostname);
  return host.startsWith('/') ? { path: `${host}/.s.PGSQL.${port || 5432}` } : { host, port: Number(port || 5432) };
}
