import { cp, mkdir, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { build } from 'esbuild';

/**
 * Bundles the Lambda functions into `dist/lambda`: `handlers/lambda.mjs` with its shared chunks, and `migrations/`
 * beside it, of which only the file names are read. The SDK's chunks are loaded only if the configuration needs them.
 *
 *   node infra/bundle.ts [FOLDER]
 */
const root = join(import.meta.dirname, '..');
const out = resolve(process.argv[2] ?? join(root, 'dist/lambda'));

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
const { metafile } = await build({
  entryPoints: [join(root, 'handlers/lambda.ts')],
  outdir: join(out, 'handlers'),
  outExtension: { '.js': '.mjs' },
  bundle: true,
  splitting: true,
  minify: true,
  format: 'esm',
  platform: 'node',
  target: 'node24',
  external: ['pg-native'],
  legalComments: 'none',
  metafile: true,
  // CommonJS packages inside an ES module still call `require` for node's own modules.
  banner: { js: "import{createRequire as __cr}from'node:module';const require=__cr(import.meta.url);" },
});
await cp(join(root, 'migrations'), join(out, 'migrations'), { recursive: true });

for (const file of Object.keys(metafile.outputs).sort()) {
  const { size } = await stat(resolve(file));
  process.stdout.write(`${file} ${Math.ceil(size / 1024)} KiB\n`);
}
