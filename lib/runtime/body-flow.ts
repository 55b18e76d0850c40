import type { IncomingMessage } from 'node:http';

/** The bytes of a request's body on their way from the socket. */
export interface BodyFlow {
  /** Nothing more is read. What was read already still comes: at most 64 KiB. */
  pause(): void;
  resume(): void;
}

/**
 * Pauses the body of a request and leaves it to the caller when it is read. By itself Node reads on until 64 KiB wait, in
 * one object a chunk, whether the request is paused or not: chunks of 1 byte took 25 MB a connection. From the first
 * `resume` on, the body has to flow (`data`). Behind its end the socket is Node's again.
 */
export function bodyFlow(req: IncomingMessage): BodyFlow {
  const { socket } = req;
  const read = req._read;
  let state: 'held' | 'flowing' | 'ended' = 'held';
  req._read = () => {}; // Node's own resumes the socket
  socket.pause();
  req.once('end', () => {
    state = 'ended';
    socket.resume();
  });
  return {
    pause() {
      if (state !== 'ended') socket.pause();
    },
    resume() {
      if (state === 'ended' || socket.destroyed) return;
      // Tells Node that somebody takes the body: else it is dropped, with our listeners, behind the answer.
      if (state === 'held') read.call(req, 0);
      state = 'flowing';
      socket.resume();
    },
  };
}
