import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { INFERENCE_ENDPOINTS } from '../../../handlers/inference.ts';
import * as exported from '../../../handlers/lambda.ts';

// serverless.yml is written by hand and names each route again: here it is held to the endpoints, both ways.

interface Deployed {
  handler: string;
  events: { httpApi?: string }[];
}

const text = readFileSync(new URL('../../../serverless.yml', import.meta.url), 'utf8');
// The tags of CloudFormation (`!Ref`) are unknown here and passed over.
const { functions } = parse(text, { logLevel: 'silent' }) as { functions: Record<string, Deployed> };

test('serverless.yml gives each endpoint on Lambda to the function that it names, and has no other route', () => {
  const deployed = Object.entries(functions).flatMap(([name, { events }]) =>
    events.flatMap(({ httpApi }) => (httpApi === undefined ? [] : [`${name}: ${httpApi}`])),
  );
  const endpoints = INFERENCE_ENDPOINTS.filter(({ lambda }) => lambda !== null);
  const wanted = endpoints.map(({ lambda, method, pattern }) => `${lambda}: ${method} ${pattern}`);
  expect(deployed.sort()).toEqual(wanted.sort());
});

test('serverless.yml has the functions of handlers/lambda.ts under their own names, and no other', () => {
  const handlers = Object.entries(functions).map(([name, { handler }]) => [name, handler]);
  const names = Object.keys(exported);
  expect(Object.fromEntries(handlers)).toEqual(
    Object.fromEntries(names.map((name) => [name, `dist/lambda/handlers/lambda.${name}`])),
  );
});

test('a function that API Gateway calls has an endpoint', () => {
  const apiFunctions = Object.keys(exported).filter((name) => name !== 'worker' && name !== 'sweep');
  const named = new Set(INFERENCE_ENDPOINTS.flatMap(({ lambda }) => lambda ?? []));
  expect([...named].sort()).toEqual(apiFunctions.sort());
});
