import type { Shape } from '../../model/catalog.ts';

/**
 * The endpoints that a batch can name, and the shape of its items ("Create of an OpenAI batch" in
 * docs/spec/openai-surface.md).
 */
const SHAPES = {
  '/v1/chat/completions': 'openai',
  '/v1/responses': 'openai_responses',
  '/v1/embeddings': 'openai_embeddings',
} as const satisfies Record<string, Shape>;

export type BatchEndpoint = keyof typeof SHAPES;

export const ENDPOINTS = Object.keys(SHAPES) as BatchEndpoint[];

/** The shape of a batch for this endpoint. */
export function shapeOf(endpoint: BatchEndpoint): Shape {
  return SHAPES[endpoint];
}
