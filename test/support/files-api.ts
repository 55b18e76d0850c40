import { bindEndpoints } from '../../handlers/endpoint.ts';
import { FILE_ENDPOINTS } from '../../handlers/files.ts';
import type { SeenRequest } from '../../lib/http/node.ts';
import type { PayloadKind, PayloadStore } from '../../lib/payloads/payload-store.ts';
import { BOUNDARY } from './files-form.ts';
import { type Answer, type Call, createNativeApi, type NativeApi, type Way } from './native-api.ts';

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
  const routes = bindEndpoints(FILE_ENDPOINTS, { ...app, maxFileBytes });
  const { server, seen, call } = await native.serve(routes, { maxBodyBytes: 1024, payloads: app.payloads });
  return {
    native,
    payloads: app.payloads,
    port: server.port,
    seen,
    call,
    async objects(kind) {
      const ids: string[] = [];
      for await (const { id } of app.payloads.list(kind, Date.now() + 3_600_000)) ids.push(id);
      return ids;
    },
    close: native.close,
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
