import type { Shape } from '../../model/catalog.ts';

/**
 * What a batch can be for, and the shape its items then have ("Create of an OpenAI batch" in
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
