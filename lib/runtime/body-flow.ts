import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';

/** The bytes of a request's body on their way from the socket. */
export interface BodyFlow {
  /** Nothing more is read. What was read already still comes: at most 64 KiB. */
  pause(): void;
  resume(): void;
}

/** Of the last request with a body on each connection: those before it have arrived whole. */
const last = new WeakMap<Socket, () => void>();

/**
 * Pauses the body of a request and leaves it to the caller when it is read. By itself Node reads on until 64 KiB wait, in
 * one object a chunk, whether the request is paused or not: chunks of 1 byte took 25 MB a connection. From the first
 * `resume` on, the body has to flow (`data`). Behind its end the socket is Node's again.
 */
export function bodyFlow(req: IncomingMessage): BodyFlow {
  const { socket } = req;
  const read = req._read;
  let isTold = false;
  let isPaused = false;
  let isOver = false;
  const isLast = () => last.get(socket) === onResume;
  const pause = () => {
    isPaused = true;
    if (isOver || !isLast()) return;
    socket.pause();
    // A resume of the same tick comes after it, and reads on though the stream counts as paused: this stops the reading.
    socket.emit('pause');
  };
  const onResume = () => {
    if (isPaused) pause();
  };
  const end = () => {
    isOver = true;
    socket.off('resume', onResume);
  };
  const before = last.get(socket);
  if (before !== undefined) socket.off('resume', before);
  last.set(socket, onResume);
  req._read = () => {}; // Node's own resumes the socket
  socket.on('resume', onResume);
  pause();
  req.once('close', end);
  req.once('end', () => {
    end();
    if (isLast()) socket.resume();
  });
  return {
    pause,
    resume() {
      isPaused = false;
      if (isOver || socket.destroyed || !isLast()) return;
      // Tells Node that somebody takes the body: else it is dropped, with our listeners, behind the answer.
      if (!isTold) read.call(req, 0);
      isTold = true;
      socket.resume();
    },
  };
}
