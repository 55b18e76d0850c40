import type { Dispatcher } from 'undici';
import type { Clock } from '../base/clock.ts';
import { freeAtOnce, type GrowingBuffer, growingBuffer } from '../base/growing-buffer.ts';
import { inTurns, nextTurn } from '../base/turns.ts';
import { type ByteBudget, LARGE_BYTES, type Receiver } from './budget.ts';
import type { CallClass, CallRequest, CallResult } from './call-result.ts';
import { classOfError, classOfStatus } from './classify.ts';
import type { Connection, Holder, OriginPool } from './connections.ts';
import { type Decoded, type DecodeRoom, decodeBody } from './decode.ts';
import type { Gate } from './gate.ts';
import { type Judgement, judgeBody, judgeLargeBody, NOT_JSON, PARSE_MOST_BYTES } from './judge-answer.ts';
import { type ResponseHead, readResponseHead, retryAfterOf } from './response-head.ts';

/** Pauses between the three dials of one attempt, in ms ("Upstream outcome classes" in docs/spec/gateway-rules.md). */
const REDIAL_MS = [100, 200];

/**
 * Chunks between two turns of the event loop: some milliseconds of work. When each is a byte, one read of the socket brings
 * 11,000 of them, and one turn has 32 reads. It must be more than one read brings, or what is read piles up in the socket.
 */
const CHUNKS_A_TURN = 12_288;

/** Bytes of a large answer that are counted together: there may be one in a chunk. */
const COUNT_BYTES = 64 * 1024;

const EMPTY = Buffer.alloc(0);

/** The parts that all calls of a client share. */
export interface CallContext {
  clock: Clock;
  /** Monotonic ms, without times in which the process stood still: what deadlines are measured in. */
  awakeMs(): number;
  maxResponseBytes: number;
  /** Calls begun and not over: while there are any, the client's timer runs. */
  open: number;
  /** Calls between two dials, which no connection holds. A Set of all calls in flight would cost 4 us a call. */
  pausing: Set<Call>;
  budget: ByteBudget;
  /** Long decodings at a time. */
  decoding: Gate;
}

/**
 * One call from dial to judged answer, as undici's handler of its own exchange.
 *
 *   dialling --(3 failures)--> unreachable
 *      | connected, written
 *   sent --(broken, cut short)--> network
 *      | whole answer (from here on neither deadline nor abort counts)
 *   complete --> decoded --> judged
 *
 * At any moment before `complete`: deadline -> timeout, signal -> aborted, too many bytes -> too_large.
 *
 * A class, because undici wants an object with methods, and one with a prototype is a single allocation a call. The raw
 * callbacks (onHeaders with unparsed pairs) cost 8 % less a request than undici's newer ones.
 */
export class Call implements Dispatcher.DispatchHandler, Holder, Receiver, DecodeRoom {
  /** In `awakeMs`; time in which we ourselves did not read does not count. */
  private deadline: number;
  private readonly request: CallRequest;
  private readonly context: CallContext;
  private readonly pool: OriginPool;
  private readonly options: Dispatcher.DispatchOptions;
  private readonly resolve: (result: CallResult) => void;

  private connection: Connection | null = null;
  private dialsBefore = 0;
  private failedDials = 0;
  private redialTimer: NodeJS.Timeout | null = null;
  private abortExchange: (() => void) | null = null;
  private over = false;

  private status = 0;
  private head: ResponseHead | null = null;
  private retryAfterMs: number | null = null;
  /** The answer's only chunk, as nearly all have one; `chunks` takes over with the second one. */
  private firstChunk: Buffer | null = null;
  private chunks: GrowingBuffer | null = null;
  private chunkCount = 0;
  private size = 0;
  /** The budget knows of the answer: it is large, or is decoded for long. */
  private counted = false;
  /** Bytes counted in the budget. */
  private taken = 0;
  private pausedAt: number | null = null;
  /** Continues with a decoding that waits for the budget. */
  private decodeOn: (() => void) | null = null;
  private readOn: (() => void) | null = null;
  private readonly startedAt: number;
  private responseStartedAt: number | null = null;
  private responseEndedAt: number | null = null;

  constructor(
    request: CallRequest,
    options: Dispatcher.DispatchOptions,
    pool: OriginPool,
    context: CallContext,
    resolve: (result: CallResult) => void,
  ) {
    this.request = request;
    this.options = options;
    this.pool = pool;
    this.context = context;
    this.resolve = resolve;
    this.startedAt = context.clock.now();
    this.deadline = context.awakeMs() + request.timeoutMs;
  }

  start(): void {
    this.context.open++;
    this.dial();
  }

  check(now: number): void {
    if (this.request.signal.aborted) this.end('aborted');
    else if (now >= this.deadline && this.pausedAt === null) this.end('timeout');
  }

  /** Ends the call early and closes its connection at once. Without effect once the answer is complete. */
  end(callClass: CallClass): void {
    if (this.over) return;
    this.leave();
    this.closeConnection();
    this.settle(callClass, null);
  }

  onConnect(abort: () => void): void {
    if (this.over) abort();
    this.abortExchange = abort;
  }

  onHeaders(status: number, rawHeaders: Buffer[], resume: () => void): boolean {
    // Informational heads (103) come before the real one.
    if (this.over || status < 200) return true;
    if (this.connection !== null) this.connection.awaitsHead = false;
    this.status = status;
    this.readOn = resume;
    this.responseStartedAt = this.context.clock.now();
    this.head = readResponseHead(rawHeaders);
    this.retryAfterMs = retryAfterOf(this.head, this.responseStartedAt);
    if ((this.head.contentLength ?? 0) > this.context.maxResponseBytes) this.endTooLarge();
    return true;
  }

  onData(chunk: Buffer): boolean {
    if (this.over) return true;
    this.size += chunk.length;
    if (this.size > this.context.maxResponseBytes) {
      this.endTooLarge();
      return true;
    }
    this.keep(chunk);
    if (++this.chunkCount % CHUNKS_A_TURN === 0) return this.pauseForATurn();
    return this.size < LARGE_BYTES || this.size - this.taken < COUNT_BYTES || this.count();
  }

  private pauseForATurn(): false {
    void nextTurn().then(() => {
      if (!this.over) this.readOn?.();
    });
    return false;
  }

  private keep(chunk: Buffer): void {
    if (this.chunks === null && this.firstChunk === null) {
      this.firstChunk = chunk;
      return;
    }
    if (this.chunks === null) {
      this.chunks = growingBuffer(this.head?.contentLength ?? 0);
      this.chunks.append(this.firstChunk!);
      this.firstChunk = null;
    }
    this.chunks.append(chunk);
  }

  /** Counts what has arrived since the last time; false when the budget wants us to stop reading. */
  private count(): boolean {
    if (this.take(this.size - this.taken)) return true;
    this.pausedAt = this.context.awakeMs();
    return false;
  }

  private take(bytes: number): boolean {
    this.counted = true;
    this.taken += bytes;
    return this.context.budget.take(this, bytes);
  }

  private forget(): void {
    this.firstChunk = null;
    this.chunks = null;
  }

  resume(): void {
    this.decodeOn?.();
    if (this.pausedAt === null) return;
    this.deadline += this.context.awakeMs() - this.pausedAt;
    this.pausedAt = null;
    // Later: it may be another call's last bytes that made room, and undici's parser, which is in the middle of them,
    // refuses to run a second time beneath itself. Both calls would hang.
    setImmediate(() => {
      if (!this.over) this.readOn?.();
    });
  }

  onComplete(): void {
    if (this.over) return;
    this.responseEndedAt = this.context.clock.now();
    this.leave();
    if (this.connection !== null) this.pool.release(this.connection);
    this.connection = null;
    const { chunks } = this;
    const raw = chunks === null ? (this.firstChunk ?? EMPTY) : chunks.whole();
    this.forget();
    if (raw !== null) this.decode(raw);
    else void inTurns(chunks!.join(), this.size).then((joined) => this.decode(joined));
  }

  private decode(raw: Buffer): void {
    const limits = { maxBytes: this.context.maxResponseBytes, room: this };
    const decoded = decodeBody(this.head?.contentEncoding ?? null, raw, limits);
    if (!(decoded instanceof Promise)) this.judge(decoded);
    else
      void decoded.then((later) => {
        if (raw.length >= LARGE_BYTES) freeAtOnce(raw);
        this.judge(later);
      });
  }

  /** Of a decoding: a small answer may grow, so that it begins when the budget has room. */
  async begin(): Promise<void> {
    if (!this.take(0)) await this.waitForBudget();
    await this.context.decoding.enter();
  }

  async reserve(bytes: number): Promise<void> {
    if (this.take(bytes)) return;
    // Others may be nearer to their end, the oldest of all answers for one.
    this.context.decoding.leave();
    await this.waitForBudget();
    await this.context.decoding.enter();
  }

  finish(): void {
    this.context.decoding.leave();
  }

  private waitForBudget(): Promise<void> {
    return new Promise((resolve) => {
      this.decodeOn = () => {
        this.decodeOn = null;
        resolve();
      };
    });
  }

  onError(): void {
    if (this.over) return;
    if (this.abortExchange !== null) {
      // A 204 or 304 has no body, whatever Content-Length it carries (RFC 9110 section 6.4.1); undici calls it cut short.
      if (this.status === 204 || this.status === 304) this.endBodiless();
      else this.end('network');
      return;
    }
    // Nothing was written. The dial failed, or an idle connection broke just before its use, and another is taken at once.
    // Or undici refused the request itself (a header that HTTP does not allow), and no dial would help.
    const dials = this.connection?.dials ?? 0;
    this.closeConnection();
    if (dials > 0 && dials === this.dialsBefore) this.redial(0);
    else if (dials === 0 || this.failedDials >= REDIAL_MS.length) this.end('unreachable');
    else this.redial(REDIAL_MS[this.failedDials++]!);
  }

  private dial(): void {
    if (this.redialTimer !== null) this.context.pausing.delete(this);
    this.redialTimer = null;
    const connection = this.pool.take(this);
    this.connection = connection;
    this.dialsBefore = connection.dials;
    connection.client.dispatch(this.options, this);
  }

  private redial(afterMs: number): void {
    this.context.pausing.add(this);
    this.redialTimer = setTimeout(() => this.dial(), afterMs);
  }

  /** An error status says all there is to say, however long its body; of a success the body is what counts. */
  private endTooLarge(): void {
    const byStatus = classOfStatus(this.status, this.retryAfterMs);
    this.end(byStatus === 'success' ? 'too_large' : byStatus);
  }

  private endBodiless(): void {
    this.responseEndedAt = this.context.clock.now();
    this.leave();
    this.closeConnection();
    this.judge({ body: EMPTY });
  }

  private judge(decoded: Decoded): void {
    const body = 'body' in decoded ? decoded.body : null;
    const byStatus = classOfError(this.status, this.retryAfterMs, body);
    if (byStatus !== 'success') this.settle(byStatus, body);
    else if (body !== null) this.judgeSuccess(body);
    else if ('fault' in decoded && decoded.fault === 'too_large') this.settle('too_large', null);
    else this.settle('bad_response', null, NOT_JSON);
  }

  private judgeSuccess(body: Buffer): void {
    const settle = (judgement: Judgement) => this.settle(judgement.class, body, judgement);
    if (body.length <= PARSE_MOST_BYTES) settle(judgeBody(this.request, body));
    else void inTurns(judgeLargeBody(this.request, body), body.length).then(settle);
  }

  private leave(): void {
    this.over = true;
    this.context.open--;
    if (this.redialTimer === null) return;
    clearTimeout(this.redialTimer);
    this.context.pausing.delete(this);
  }

  private closeConnection(): void {
    this.forget();
    if (this.connection === null) return;
    this.abortExchange?.();
    this.pool.drop(this.connection);
    this.connection = null;
  }

  private settle(callClass: CallClass, body: Buffer | null, judgement: Judgement | null = null): void {
    const kept = body !== null && body.length >= LARGE_BYTES ? body.length : 0;
    if (this.counted) this.context.budget.end(this, this.taken, kept);
    this.resolve({
      class: callClass,
      status: this.status,
      body,
      parsed: judgement?.parsed,
      badReason: judgement?.badReason ?? null,
      message: judgement?.message ?? null,
      contentType: this.head?.contentType ?? null,
      upstreamRequestId: this.head?.requestId ?? null,
      retryAfterMs: this.retryAfterMs,
      startedAt: this.startedAt,
      responseStartedAt: this.responseStartedAt,
      responseEndedAt: this.responseEndedAt,
    });
  }
}
