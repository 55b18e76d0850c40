import type { ApiHandler } from '../lib/http/event.ts';
import type { CreateFileDeps } from '../lib/surfaces/files/create-file.ts';
import { type FileContentApp, fileContentHandler } from './files-content.ts';
import { createFileHandler } from './files-create.ts';
import { getFileHandler } from './files-get.ts';
import { listFilesHandler } from './files-list.ts';
import { removeFileHandler } from './files-remove.ts';

/** All that the files API needs of the application. */
export type FilesApp = CreateFileDeps & FileContentApp;

/** Names of the files handlers in the route table. */
export type FilesHandlerName = 'createFile' | 'listFiles' | 'getFile' | 'removeFile' | 'fileContent';

/** The handlers of `/v1/files`; that of `createFile` wants its body streamed. */
export function filesHandlers(app: FilesApp, maxFileBytes?: number): Record<FilesHandlerName, ApiHandler> {
  return {
    createFile: createFileHandler(app, maxFileBytes),
    listFiles: listFilesHandler(app),
    getFile: getFileHandler(app),
    removeFile: removeFileHandler(app),
    fileContent: fileContentHandler(app),
  };
}
