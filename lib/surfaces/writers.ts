import type { ResultsWriters } from '../batch/results/compact.ts';
import { writeMessageResults } from './anthropic/write-results.ts';
import { writeOpenaiResults } from './openai/write-results.ts';

/** How finished batches of the SDK surfaces are written; the native form is the compactor's own. */
export const RESULTS_WRITERS: ResultsWriters = { openai: writeOpenaiResults, anthropic: writeMessageResults };
