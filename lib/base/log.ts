import { type Logger, pino } from 'pino';

export type Log = Logger;

/** JSON logs on stdout. Payloads and credentials are never passed to it: there is nothing to redact. */
export function createLog(level: string): Log {
  return pino({
    level,
    base: undefined,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
  });
}
