// A client that is going to be killed in the middle of a call. Usage:
//
//   node victim.mjs SECONDS v1|v2 legacy|modern http URL
//   node victim.mjs SECONDS v1|v2 legacy|modern stdio PROGRAM [ARG…]
//
// Makes a context and runs code in it that notes how it ended. Prints the
// context's id when the code has begun, and waits for its end.
import { connect } from './connect.mjs';

const [seconds, ...how] = process.argv.slice(2);
const { call } = await connect(...how);
const made = await call('create_context', { name: `victim-${process.pid}` }, { timeout: 60_000 });
const { context_id } = made.structuredContent;
await call('run_code', { context_id, timeout: 60, code: `
import time
end = "unknown"
try:
    print("begun", flush=True)
    time.sleep(${Number(seconds)})
    end = "finished"
except KeyboardInterrupt:
    end = "interrupted"
    raise
` }, { timeout: 60_000, onprogress: () => console.log(context_id) });
