import { z } from 'zod';
import { ApiError } from '../lib/base/errors.ts';
import type { StreamDeps } from '../lib/batch/results/reader-budget.ts';
import type { Db } from '../lib/db/database.ts';
import { refuseEncodedBody, whole } from '../lib/http/contracts.ts';
import { pathParameter, streamOf } from '../lib/http/event.ts';
import { attachment, json, jsonText } from '../lib/http/render.ts';
import { type CreateFileDeps, createFile } from '../lib/surfaces/files/create-file.ts';
import { fileObject, MAX_FILE_BYTES } from '../lib/surfaces/files/file-object.ts';
import { requireFile } from '../lib/surfaces/files/find-file.ts';
import { listFilesJson } from '../lib/surfaces/files/list-files.ts';
import { parseRange } from '../lib/surfaces/files/range.ts';
import { objectOf, type ReadContentDeps, readContent } from '../lib/surfaces/files/read-content.ts';
import { type RemoveFileDeps, removeFile } from '../lib/surfaces/files/remove-file.ts';
import type { FileRow } from '../lib/surfaces/files/stored-files.sql.ts';
import { type Endpoint, endpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

// OpenAI's files ("File routes" in docs/spec/openai-surface.md), at `/v1/files` and below `/openai`.

/** All that files need of the application. */
export type FilesApp = CreateFileApp & ReadContentDeps & StreamDeps & RemoveFileDeps;

interface CreateFileApp extends GateDeps, CreateFileDeps {
  log: CreateFileDeps['log'];
  /** 200 MB unless a test says otherwise. */
  maxFileBytes?: number;
}

/** On Lambda the event holds all of the body, at most 6 MB. */
const createFileEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/files', body: 'stream', lambda: 'openai' },
  async (app: CreateFileApp, { owner }, event) => {
    refuseEncodedBody(event.headers);
    const row = await createFile(app, {
      owner,
      contentType: event.headers['content-type'],
      contentLength: lengthOf(event.headers['content-length']),
      body: streamOf(event),
      maxFileBytes: app.maxFileBytes ?? MAX_FILE_BYTES,
    });
    return json(200, fileObject(row));
  },
);

function lengthOf(header: string | undefined): number | null {
  return header !== undefined && /^\d+$/.test(header) ? Number(header) : null;
}

/** Purposes that OpenAI clients may ask for; files of the last ones do not exist here. */
const FILE_PURPOSES = [
  'batch',
  'batch_output',
  'assistants',
  'assistants_output',
  'evals',
  'fine-tune',
  'fine-tune-results',
  'user_data',
  'vision',
] as const;

const LIST_QUERY = z.object({
  after: z.string().optional(),
  limit: whole(1, 10_000).default(10_000),
  order: z.enum(['asc', 'desc'], 'must be asc or desc').default('desc'),
  purpose: z.enum(FILE_PURPOSES, `must be one of ${FILE_PURPOSES.join(', ')}`).optional(),
});

const listFilesEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/files', lambda: 'openai', query: LIST_QUERY },
  async (app: GateDeps & { db: Db }, { owner }, _event, { after, limit, order, purpose }) => {
    if (purpose !== undefined && purpose !== 'batch' && purpose !== 'batch_output') {
      // A purpose that exists elsewhere: there are no such files here.
      return json(200, { object: 'list', data: [], first_id: null, last_id: null, has_more: false });
    }
    const query = { owner, purpose: purpose ?? null, after: after ?? null, limit, order };
    return jsonText(200, await listFilesJson(app.db, query));
  },
);

const getFileEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/files/{id}', lambda: 'openai' },
  async (app: GateDeps & { db: Db }, { owner }, event) =>
    json(200, fileObject(await requireFile(app.db, owner, pathParameter(event, 'id')))),
);

const removeFileEndpoint = endpoint(
  { method: 'DELETE', pattern: '/v1/files/{id}', lambda: 'openai' },
  async (app: GateDeps & RemoveFileDeps, { owner }, event) => {
    const id = pathParameter(event, 'id');
    await removeFile(app, owner, id);
    return json(200, { id, object: 'file', deleted: true });
  },
);

/** The content, whole or the one range of the `Range` header. `If-Range` is ignored: files never change. */
const getContentEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/files/{id}/content', lambda: 'openai' },
  async (app: GateDeps & ReadContentDeps & StreamDeps, { owner }, event) => {
    const row = await requireFile(app.db, owner, pathParameter(event, 'id'));
    const range = parseRange(event.headers.range, row.bytes);
    if (range.kind === 'outside') throw outside(row.bytes);
    const { offset, length } = range.kind === 'part' ? range : { offset: 0, length: row.bytes };
    const headers = { ...headersOf(row), 'content-length': String(length) };
    const part = { 'content-range': `bytes ${offset}-${offset + length - 1}/${row.bytes}` };
    return {
      ...(range.kind === 'whole'
        ? { statusCode: 200, headers }
        : { statusCode: 206, headers: { ...headers, ...part } }),
      stream: app.readers.stream(owner, () => readContent(app, row, offset, length)),
      length,
      object: objectOf(row),
    };
  },
);

function headersOf(row: FileRow): Record<string, string> {
  return {
    'content-type': 'application/octet-stream',
    'content-disposition': attachment(row.filename),
    'accept-ranges': 'bytes',
  };
}

function outside(bytes: number): ApiError {
  const headers = { 'content-range': `bytes */${bytes}` };
  return new ApiError('invalid_value', `Range begins after the ${bytes} bytes of the file`, {
    status: 416,
    param: 'Range',
    headers,
  });
}

export const FILE_ENDPOINTS: readonly Endpoint<FilesApp>[] = [
  createFileEndpoint,
  listFilesEndpoint,
  getFileEndpoint,
  removeFileEndpoint,
  getContentEndpoint,
];
