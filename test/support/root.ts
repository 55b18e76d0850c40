import { join } from 'node:path';

/** The folder of the repository, so that a test does not have to know how deep it lies. */
export const ROOT = join(import.meta.dirname, '../..');
