import { ApiError } from '../lib/base/errors.ts';
import type { CatalogCache } from '../lib/catalog/catalog-cache.ts';
import {
  type ChangeDeps,
  type Changed,
  createObject,
  deleteObject,
  faultsOfClaim,
  replaceObject,
} from '../lib/catalog/change.ts';
import { type CatalogDocument, CatalogError, formatFault } from '../lib/catalog/documents/document.ts';
import { type Kind, kindOfPlural } from '../lib/catalog/documents/kinds.ts';
import { exportCatalog, findView, listViews } from '../lib/catalog/view.ts';
import { documentBody } from '../lib/http/control-body.ts';
import { type ApiEvent, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type AdminDeps, adminEndpoint } from './admin.ts';
import type { Endpoint } from './endpoint.ts';

/** The parts of the application that the endpoints of catalogue objects use. */
export interface ObjectsApp extends AdminDeps, ChangeDeps {
  catalogCache: Pick<CatalogCache, 'current' | 'refresh'>;
}

/** A policy with 10,000 grants has about so much. JSON.parse takes 0.1 s for the worst of this size. */
const MAX_DOCUMENT_BYTES = 1024 * 1024;

const listObjectsEndpoint = adminEndpoint({ method: 'GET', pattern: '/api/{plural}' }, async (app: ObjectsApp, event) =>
  json(200, { items: await listViews(app.db, kindOf(event)) }),
);

const getObjectEndpoint = adminEndpoint(
  { method: 'GET', pattern: '/api/{plural}/{nameOrId}' },
  async (app: ObjectsApp, event) => {
    const found = await findView(app.db, kindOf(event), pathParameter(event, 'nameOrId'));
    if (found === null) throw new ApiError('not_found');
    return json(200, found);
  },
);

/** A new key answers with its plaintext, null when that came from the environment. */
const createObjectEndpoint = adminEndpoint(
  { method: 'POST', pattern: '/api/{plural}', body: 'read', maxBytes: MAX_DOCUMENT_BYTES },
  async (app: ObjectsApp, event) => {
    const kind = kindOf(event);
    const changed = await createObject(await documentOf(app, event, kind, null), app);
    await settle(app, changed);
    return json(201, kind === 'Key' ? { plaintext: changed.plaintext, key: changed.object } : changed.object);
  },
);

const replaceObjectEndpoint = adminEndpoint(
  { method: 'PUT', pattern: '/api/{plural}/by-id/{id}', body: 'read', maxBytes: MAX_DOCUMENT_BYTES },
  async (app: ObjectsApp, event) => {
    const kind = kindOf(event);
    const id = pathParameter(event, 'id');
    const changed = await replaceObject(id, await documentOf(app, event, kind, id), app);
    await settle(app, changed);
    return json(200, changed.object);
  },
);

const deleteObjectEndpoint = adminEndpoint(
  { method: 'DELETE', pattern: '/api/{plural}/by-id/{id}' },
  async (app: ObjectsApp, event) => {
    await deleteObject(kindOf(event), pathParameter(event, 'id'), app);
    await app.catalogCache.refresh();
    return { statusCode: 204, headers: {} };
  },
);

const exportCatalogEndpoint = adminEndpoint({ method: 'GET', pattern: '/api/catalog' }, async (app: ObjectsApp) => {
  const headers = { 'content-type': 'application/yaml; charset=utf-8' };
  return { statusCode: 200, headers, body: await exportCatalog(app.db) };
});

export const OBJECT_ENDPOINTS: readonly Endpoint<ObjectsApp>[] = [
  exportCatalogEndpoint,
  listObjectsEndpoint,
  createObjectEndpoint,
  getObjectEndpoint,
  replaceObjectEndpoint,
  deleteObjectEndpoint,
];

/** The document in a body; a faulty one is refused with everything that is wrong with it, its references included. */
async function documentOf(app: ObjectsApp, event: ApiEvent, kind: Kind, id: string | null): Promise<CatalogDocument> {
  const body = documentBody(event, kind, id);
  if (body.ok) return body.document;
  throw new CatalogError([...body.faults, ...(body.claim ? await faultsOfClaim(body.claim, app) : [])]);
}

/** This replica works with the change before it answers. The others hear of it by NOTIFY. */
async function settle(app: ObjectsApp, changed: Changed): Promise<void> {
  for (const warning of changed.warnings) app.log.warn({ warning: formatFault(warning) }, 'catalogue warning');
  await app.catalogCache.refresh();
}

function kindOf(event: ApiEvent): Kind {
  const kind = kindOfPlural(pathParameter(event, 'plural'));
  if (kind === null) throw new ApiError('not_found');
  return kind;
}
