// Types and constants that every layer speaks about. They import nothing but each other, so anything may import them.
const VOCABULARY = '^lib/(batch/batch|catalog/catalog|usage/event)\\.ts$';

// The direction of imports, lowest layer first. A module may import its own layer and those below it.
const LAYERS = [
  ['config', '^lib/(config|errors|clock|log)\\.ts$'],
  ['json', '^lib/json/'],
  ['store, queue', '^lib/(store|queue)/'],
  ['postgres', '^lib/postgres/'],
  ['catalog', '^lib/catalog/'],
  ['auth, routing, keypool, limits, upstream', '^lib/(auth|routing|keypool|limits|upstream)/'],
  ['batch, worker, usage', '^lib/(batch|worker|usage)/'],
  ['surfaces', '^lib/surfaces/'],
  ['http', '^lib/http/'],
  ['app', '^lib/(app|app-[a-z]+|ready|metrics)\\.ts$'],
  ['bin, handlers', '^(bin|handlers)/'],
];

const upward = LAYERS.slice(0, -1).map(([name, path], i) => ({
  name: `upward from ${name}`,
  severity: 'error',
  from: { path, pathNot: VOCABULARY },
  to: { path: LAYERS.slice(i + 1).map(([, above]) => above), pathNot: VOCABULARY },
}));

// biome-ignore lint/style/noDefaultExport: what dependency-cruiser reads
export default {
  forbidden: [
    ...upward,
    {
      name: 'vocabulary imports only vocabulary',
      severity: 'error',
      from: { path: VOCABULARY },
      to: { pathNot: VOCABULARY },
    },
    { name: 'cycle', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'every folder of lib has a layer',
      comment: 'A new folder has to be put into LAYERS, or no rule would hold it.',
      severity: 'error',
      from: { path: '^lib/', pathNot: LAYERS.map(([, path]) => path) },
      to: {},
    },
    {
      name: 'embedded Postgres is for the composition root',
      severity: 'error',
      from: { path: '^(lib|handlers)/', pathNot: '^lib/(postgres/|app(-home)?\\.ts$)' },
      to: { path: '^lib/postgres/' },
    },
    {
      name: 'the service does not import its surroundings',
      severity: 'error',
      from: { path: '^(lib|handlers|bin)/' },
      to: { path: '^(test|bench|demo|scripts)/' },
    },
    { name: 'unresolvable', severity: 'error', from: {}, to: { couldNotResolve: true } },
    {
      name: 'test tools in the service',
      severity: 'error',
      from: { path: '^(lib|handlers|bin)/' },
      to: { dependencyTypes: ['npm-dev'], dependencyTypesNot: ['type-only'] },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default', 'types'] },
  },
};
