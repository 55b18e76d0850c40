import { routesOf } from '../../handlers/endpoint.ts';
import { FILE_ENDPOINTS } from '../../handlers/files.ts';
import { type SeenRequest, serve } from '../../lib/http/node.ts';
import { createMatcher } from '../../lib/http/routes.ts';
import type { PayloadKind, PayloadStore } from '../../lib/payloads/payload-store.ts';
import { BOUNDARY } from './files-form.ts';
import {
  type Answer,
  asEvent,
  type Call,
  createNativeApi,
  type NativeApi,
  onLambda,
  overHttp,
  type Way,
} from './native-api.ts';

/** The files API on a real database and store, beside the native one that announces uploads. */
export interface FilesApi {
  native: NativeApi;
  payloads: PayloadStore;
  /** Where the files API listens. */
  port: number;
  seen: SeenRequest[];
  call(way: Way, call: Call): Promise<Answer>;
  /** Ids of the objects of a kind. */
  objects(kind: PayloadKind): Promise<string[]>;
  close(): Promise<void>;
}

/** Opens it with a limit for files; `payloads` in place of the store on files. */
export async function createFilesApi(maxFileBytes: number, payloads?: PayloadStore): Promise<FilesApi> {
  const native = await createNativeApi(() => (payloads === undefined ? {} : { payloads }));
  const app = { ...native.app, payloads: payloads ?? native.payloads, db: native.database.db };
  const routes = routesOf(FILE_ENDPOINTS, { ...app, maxFileBytes });
  const seen: SeenRequest[] = [];
  const onRequest = (request: SeenRequest) => void seen.push(request);
  const listen = { host: '127.0.0.1', port: 0, maxBodyBytes: 1024, log: app.log, onRequest };
  const server = await serve({ ...listen, routes });
  const find = createMatcher(onLambda(routes, app));
  return {
    native,
    payloads: app.payloads,
    port: server.port,
    seen,
    call: (way, call) => (way === 'node' ? overHttp(`http://127.0.0.1:${server.port}`, call) : asEvent(find, call)),
    async objects(kind) {
      const ids: string[] = [];
      for await (const { id } of app.payloads.list(kind, Date.now() + 3_600_000)) ids.push(id);
      return ids;
    },
    async close() {
      await server.close(0);
      await native.close();
    },
  };
}

/** A call that creates a file of a form. */
export function creation(body: Buffer, headers: Record<string, string> = {}, as?: string | null): Call {
  const type = { 'content-type': `multipart/form-data; boundary=${BOUNDARY}` };
  return {
    method: 'POST',
    path: '/v1/files',
    headers: { ...type, ...headers },
    body,
    ...(as === undefined ? {} : { as }),
  };
}
