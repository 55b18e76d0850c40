/**
 * Loaded before the server of a test (`speed` of startServer). In this process the monotonic clock and every timer run
 * RELAY_TEST_SPEED times as fast, and with them each heartbeat, time limit and back-off. Database time is nobody's to
 * scale: leases in it are aged by SQL. The wall clock stays, because tokens and signatures are made of it.
 */
const speed = Number(process.env.RELAY_TEST_SPEED);
const { setTimeout, setInterval } = globalThis;
const now = performance.now.bind(performance);

performance.now = () => now() * speed;
globalThis.setTimeout = Object.assign((work, ms = 0, ...args) => setTimeout(work, ms / speed, ...args), setTimeout);
globalThis.setInterval = (work, ms = 0, ...args) => setInterval(work, ms / speed, ...args);
