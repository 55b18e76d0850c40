import { ApiError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Catalog } from '../model/catalog.ts';

/** The catalogue cache of this process: always a whole catalogue, never older than one before. */
export interface CatalogCache {
  /** Returns the newest that was loaded. Throws ApiError `not_ready` before the first load. */
  current(): Catalog;
  /**
   * Loads what is committed at the time of the call, or later. Never rejects: a failure is logged, and the old
   * catalogue stays.
   */
  refresh(): Promise<void>;
  /** Loads only if `version` is newer than the present one. It stops after one failed load. */
  refreshIfNewer(version: number): Promise<void>;
  /** Calls `listener` with each newer catalogue. Returns the function that ends it. */
  onChange(listener: (catalog: Catalog) => void): () => void;
}

export interface CatalogCacheDeps {
  /** Reads the catalogue as committed (`loadCatalog`). */
  load(): Promise<Catalog>;
  log: Log;
}

/** Makes the cache. It loads nothing before the first refresh. At most one load runs, and at most one waits. */
export function createCatalogCache(deps: CatalogCacheDeps): CatalogCache {
  let catalog: Catalog | null = null;
  let running: Promise<void> | null = null;
  let waiting: Promise<void> | null = null;
  const listeners = new Set<(catalog: Catalog) => void>();

  const loadOnce = async () => {
    try {
      const loaded = await deps.load();
      // An equal version keeps the object too: indexes made of it stay valid.
      if (catalog !== null && loaded.version <= catalog.version) return;
      catalog = loaded;
      for (const listener of listeners) listener(loaded);
    } catch (error) {
      deps.log.error(
        { err: reasonOf(error), version: catalog?.version ?? null },
        'catalogue not loaded, keeping the old one',
      );
    }
  };
  const start = () => {
    running = loadOnce().finally(() => {
      running = null;
    });
    return running;
  };
  const refresh = () => {
    if (running === null) return start();
    // The load under way may have read before the change that this call is about. All such calls share one more load.
    waiting ??= running.then(() => {
      waiting = null;
      return start();
    });
    return waiting;
  };
  const isNewer = (version: number) => catalog === null || version > catalog.version;

  return {
    current() {
      if (catalog === null) throw new ApiError('not_ready');
      return catalog;
    },
    refresh,
    async refreshIfNewer(version) {
      if (!isNewer(version)) return;
      if (running !== null) await running;
      if (isNewer(version)) await refresh();
    },
    onChange(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
