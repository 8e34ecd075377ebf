#!/usr/bin/env node
// A zot client in Node. It sends one prompt, prints the answer on stdout, shows
// tool calls and usage on stderr, and fails when the run failed.
//
//   ./client.mjs "run: ls" --provider script      further arguments go to zot rpc
//
// ZOT names the zot binary; ZOTCORE_RPC_TOKEN, when set, is sent in a hello.

import { spawn } from "node:child_process";

const [prompt, ...flags] = process.argv.slice(2);
if (prompt === undefined) {
  console.error("usage: client.mjs PROMPT [FLAGS OF zot rpc]");
  process.exit(2);
}
const zot = process.env.ZOT || "zot";
const token = process.env.ZOTCORE_RPC_TOKEN;
const child = spawn(zot, ["rpc", ...flags], { stdio: ["pipe", "pipe", "inherit"] });
let failure = "";
let ended = false;

// end is called once, with the reason when the prompt was not answered. The end
// of its input ends zot, and then this process has nothing left to wait for.
function end(reason) {
  if (ended) return;
  ended = true;
  if (reason) console.error(reason);
  process.exitCode = reason ? 1 : 0;
  child.stdin.end();
  setTimeout(() => child.kill("SIGKILL"), 5000).unref();
}

const send = (command) => child.stdin.write(JSON.stringify(command) + "\n");
const sendPrompt = () => send({ id: "1", type: "prompt", message: prompt });

function handle(frame) {
  switch (frame.type) {
    case "response":
      if (!frame.success) end(`zot refused ${frame.command}: ${frame.error}`);
      else if (frame.id === "0") sendPrompt();
      break;
    case "text_delta":
      process.stdout.write(frame.delta);
      break;
    case "assistant_message": // its text has come in deltas
      if (frame.content.some((block) => block.type === "text")) process.stdout.write("\n");
      break;
    case "ext_display":
      process.stdout.write(frame.text + "\n");
      break;
    case "ext_notify":
      console.error(`[${frame.extension}] ${frame.message}`);
      break;
    case "tool_call":
      console.error(`> ${frame.name} ${JSON.stringify(frame.args)}`);
      break;
    case "usage": {
      const total = frame.cumulative;
      console.error(`tokens: ${total.input} in, ${total.output} out; $${total.cost_usd.toFixed(4)}`);
      break;
    }
    case "turn_end":
      if (frame.stop === "error" || frame.stop === "aborted") failure = `the run failed: ${frame.error ?? frame.stop}`;
      break;
    case "error":
      failure = `the run failed: ${frame.message}`;
      break;
    case "done": // always comes, and is the last
      end(failure);
      break;
  }
}

// Lines end with \n and nothing else; readline would also split on U+2028.
let rest = "";
child.stdout.setEncoding("utf8");
child.stdout.on("data", (chunk) => {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    if (ended) return;
    let frame;
    try {
      frame = JSON.parse(line);
    } catch {
      console.error(`not a frame: ${line.slice(0, 200)}`);
      continue;
    }
    handle(frame);
  }
});

child.stdin.on("error", () => {}); // zot has ended: what it said, or "close", tells
child.on("error", (err) => end(`cannot start ${zot}: ${err.message} (ZOT names the zot binary)`));
child.on("close", (code, signal) => end(`zot ended before the run was done (${signal ?? "exit status " + code})`));
process.stdout.on("error", () => process.exit(1)); // our reader has gone

if (token) send({ id: "0", type: "hello", token }); // the prompt waits for the answer
else sendPrompt();
