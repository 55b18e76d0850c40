/**
 * The layers, lowest first: folder, and what it holds. A module imports its own layer and those below it, with no
 * exception. `npm run docs` writes this list into docs/development.md as its table, and `npm run check` compares.
 */
export const LAYERS = [
  { name: 'base', folders: ['lib/base'], about: 'clock, errors and their codes, log' },
  {
    name: 'runtime',
    folders: ['lib/runtime'],
    about: 'what reaches behind the promises of V8, pg and undici',
  },
  {
    name: 'model',
    folders: ['lib/model'],
    about: 'the types that every layer speaks about: batch, catalogue, usage event',
  },
  { name: 'json', folders: ['lib/json'], about: 'finds values and lines in bytes, without parsing them into objects' },
  {
    name: 'db',
    folders: ['lib/db'],
    about: 'connections, transactions, migrations, classes of errors, advisory locks',
  },
  { name: 'payloads, queue', folders: ['lib/payloads', 'lib/queue'], about: 'bytes in files or in S3; wake-ups' },
  { name: 'postgres', folders: ['lib/postgres'], about: 'the embedded server' },
  {
    name: 'catalog',
    folders: ['lib/catalog'],
    about: 'hosts, models, policies: documents, and the snapshot in memory',
  },
  {
    name: 'gateway',
    folders: ['lib/auth', 'lib/routing', 'lib/keypool', 'lib/limits', 'lib/upstream', 'lib/usage'],
    about: 'what every item passes: credential, route, key, limits, call, tokens and cost',
  },
  { name: 'batch', folders: ['lib/batch'], about: 'the operations on batches: submit, read, results, cancel, delete' },
  { name: 'worker', folders: ['lib/worker'], about: 'the engine that runs items: lease, claim, slots, commit, sweep' },
  {
    name: 'surfaces',
    folders: ['lib/surfaces'],
    about: "OpenAI's files and batches, Anthropic's message batches, on the same core",
  },
  { name: 'http', folders: ['lib/http'], about: 'routes, contracts, rendering, the adapters of Node and of Lambda' },
  { name: 'app', folders: ['lib/app'], about: 'the composition root: configuration, parts, container and Lambda form' },
  {
    name: 'entries',
    folders: ['handlers', 'bin'],
    about: 'the endpoints, a file or a few for each surface; the programs',
  },
];

const pathsOf = ({ folders }) => folders.map((folder) => `^${folder}/`);

const upward = LAYERS.slice(0, -1).map((layer, i) => ({
  name: `upward from ${layer.name}`,
  severity: 'error',
  from: { path: pathsOf(layer) },
  to: { path: LAYERS.slice(i + 1).flatMap(pathsOf) },
}));

// biome-ignore lint/style/noDefaultExport: what dependency-cruiser reads
export default {
  forbidden: [
    ...upward,
    { name: 'cycle', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'every file of lib has a layer',
      comment: 'A new folder has to be put into LAYERS, or no rule would hold it.',
      severity: 'error',
      from: { path: '^lib/', pathNot: LAYERS.flatMap(pathsOf) },
      to: {},
    },
    {
      name: 'embedded Postgres is for the composition root',
      severity: 'error',
      from: { path: '^(lib|handlers)/', pathNot: '^lib/(postgres|app)/' },
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
