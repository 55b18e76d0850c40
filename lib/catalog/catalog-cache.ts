import { ApiError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Catalog } from '../model/catalog.ts';

/** The catalogue of this process: always whole, never older than one it had before. */
export interface CatalogCache {
  /** The newest that was loaded. Throws ApiError `not_ready` before the first load. */
  current(): Catalog;
  /**
   * Loads what is committed when it is called, or later. Never rejects: after a failure, which is logged, the old
   * catalogue stays.
   */
  refresh(): Promise<void>;
  /** Loads only when `version` is newer than the present one; one failed load ends it. */
  refreshIfNewer(version: number): Promise<void>;
  /** Calls `listener` with each newer catalogue; gives the function that ends it. */
  onChange(listener: (catalog: Catalog) => void): () => void;
}

/** What a cache is made of. */
export interface CatalogCacheDeps {
  /** Reads the catalogue as committed (`loadCatalog`). */
  load(): Promise<Catalog>;
  log: Log;
}

/** Makes the cache; nothing is loaded before the first refresh. At most one load runs, and at most one waits. */
export function createCatalogCache(deps: CatalogCacheDeps): CatalogCache {
  let catalog: Catalog | null = null;
  let running: Promise<void> | null = null;
  let waiting: Promise<void> | null = null;
  const listeners = new Set<(catalog: Catalog) => void>();

  const loadOnce = async () => {
    try {
      const loaded = await deps.load();
      // Equal versions keep the object too: indexes made of it stay good.
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
    // The load under way may have read before the change that this call is about: one more is needed, shared by all.
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
