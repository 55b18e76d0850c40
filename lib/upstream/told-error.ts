import { cutText } from '../base/errors.ts';
import { MAX_TOLD_CHARS } from './answer-elements.ts';
import type { CallClass } from './call-result.ts';
import { classOfStatus, isNoCredit } from './classify.ts';

type Fields = Readonly<Record<string, unknown>>;

/** The parts of an error inside a 2xx. */
export interface Told {
  /** At most 1,024 characters; it may hold anything. */
  message: string | null;
  /** The class that its code names, when another try or another key may help; else `bad_response`. */
  class: CallClass;
}

/** Reads an `error` member: a text, or an object with `message` and `code`, `type` or `status`. */
export function toldBy(error: unknown): Told {
  const fields = typeof error === 'object' && error !== null ? (error as Fields) : {};
  const text = typeof error === 'string' ? error : fields.message;
  const message = typeof text === 'string' && text !== '' ? text.slice(0, MAX_TOLD_CHARS) : null;
  return { message, class: isNoCredit(error) ? 'account' : classOfCodes(fields) };
}

/** The codes and types of errors that another try may heal, in lower case: OpenAI's, Anthropic's, Google's and others'. */
const BY_NAME: ReadonlyMap<string, CallClass> = new Map<string, CallClass>([
  ...(
    ['rate_limit_exceeded', 'rate_limit_error', 'rate_limited', 'too_many_requests', 'resource_exhausted'] as const
  ).map((name) => [name, 'rate_limit_short'] as const),
  ...(
    [
      'server_error',
      'internal',
      'internal_error',
      'internal_server_error',
      'api_error',
      'overloaded_error',
      'engine_overloaded',
      'unavailable',
      'service_unavailable',
      'bad_gateway',
      'deadline_exceeded',
      'timeout',
      'timeout_error',
      'vector_store_timeout',
    ] as const
  ).map((name) => [name, 'server_error'] as const),
]);

/**
 * Only classes that another try may heal count. What an error inside a 200 says of the key (401, 403) is often that of the
 * upstream's own upstream, and would open a breaker without end.
 */
const HEALED: ReadonlySet<CallClass> = new Set<CallClass>(['account', 'rate_limit_short', 'server_error', 'transient']);

/** The first of `code`, `type` and `status` that is known decides; a number is an HTTP status. */
function classOfCodes({ code, type, status }: Fields): CallClass {
  for (const one of [code, type, status]) {
    const number = typeof one === 'string' && /^\d{3}$/.test(one) ? Number(one) : one;
    if (typeof number === 'number' && number >= 400 && number < 600) {
      const byStatus = classOfStatus(number, null);
      return HEALED.has(byStatus) ? byStatus : 'bad_response';
    }
    const byName = typeof one === 'string' ? BY_NAME.get(one.toLowerCase()) : undefined;
    if (byName !== undefined) return byName;
  }
  return 'bad_response';
}

/** Characters of a secret that are as good as the whole. */
const SECRET_START = 12;
/** Shorter values are no secrets, and could stand in any text. */
export const MIN_SECRET_LENGTH = 16;

/**
 * Text that looks like a secret: a known prefix, a scheme of Authorization, credentials in a URL, or 40 random
 * characters.
 */
const SECRETS: readonly [RegExp, string][] = [
  [/\b((sk|pk|rk|gsk|xai|csk|pplx|fw|hf|nvapi|ghp|glpat)[-_]|AIza|AKIA|ASIA)[A-Za-z0-9_*.-]{7,}/g, '[...]'],
  [/\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}/gi, '$1 [...]'],
  [/:\/\/[^\s/@]{1,256}@/g, '://[...]@'],
  [/\bey[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+/g, '[...]'],
  [
    /(?<![A-Za-z0-9+/_-])(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Z])(?=[A-Za-z0-9+/_-]*[a-z])[A-Za-z0-9+/_-]{40,}/g,
    '[...]',
  ],
];

/**
 * An upstream's message as an item's error shows it: cut to 128 characters, without anything that looks like a secret.
 * Null when it repeats the beginning of one of the `secrets`, the host's keys.
 */
export function shownMessage(message: string | null, secrets: readonly (string | null)[]): string | null {
  if (message === null) return null;
  for (const secret of secrets) {
    if (secret === null || secret.length < MIN_SECRET_LENGTH) continue;
    if (message.includes(secret.slice(0, SECRET_START))) return null;
  }
  let text = message.trim();
  for (const [pattern, instead] of SECRETS) text = text.replace(pattern, instead);
  return text === '' ? null : cutText(text);
}
