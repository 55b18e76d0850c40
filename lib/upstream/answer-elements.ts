import type { CallRequest } from './call-result.ts';

type Adapter = CallRequest['adapter'];
type Fields = Readonly<Record<string, unknown>>;

/** The result field of each wire format: the list that makes an answer a response. */
export const RESULT_FIELD: Record<Adapter, string> = {
  openai: 'choices',
  openai_responses: 'output',
  anthropic: 'content',
  openai_embeddings: 'data',
};

/** The content of the list in an answer's result field. */
export interface Elements {
  count: number;
  /** A choice that is not an object, or an embedding without a vector. */
  isOdd: boolean;
  /** The `error` of the first choice that failed, or the choice itself when only its finish reason says so; else null. */
  failed: unknown;
}

/** Characters of an upstream's message that are read: more than what is shown of it. */
export const MAX_TOLD_CHARS = 1024;

/** The elements of an answer that JSON.parse returned; null when its result field is not a list. */
export function elementsOf(adapter: Adapter, fields: Fields): Elements | null {
  const list = Object.hasOwn(fields, RESULT_FIELD[adapter]) ? fields[RESULT_FIELD[adapter]] : null;
  if (!Array.isArray(list)) return null;
  const elements: Elements = { count: list.length, isOdd: false, failed: null };
  if (adapter !== 'openai' && adapter !== 'openai_embeddings') return elements;
  for (const element of list as unknown[]) {
    if (typeof element !== 'object' || element === null || Array.isArray(element)) elements.isOdd = true;
    else if (adapter === 'openai_embeddings') elements.isOdd ||= !isVector((element as Fields).embedding);
    else elements.failed ??= failureOf(element as Fields);
  }
  return elements;
}

function failureOf(choice: Fields): unknown {
  return choice.error ?? (choice.finish_reason === 'error' ? choice : null);
}

function isVector(value: unknown): boolean {
  return (Array.isArray(value) || typeof value === 'string') && value.length > 0;
}
