#!/usr/bin/env node
// clock speaks the extension protocol by hand, without an SDK: /clock shows the
// time, /stamp puts it into the editor. Everything an extension must do is here:
// hello first, then registrations and ready, a reply to every request, nothing
// but frames on stdout, and leaving when stdin ends.

console.log = console.error; // what is printed by accident goes to the log

// One frame is one line. U+2028 and U+2029 are line ends to some readers.
function send(frame, sent) {
  const line = JSON.stringify(frame).replace(/[\u2028\u2029]/g, (c) => "\\u" + c.charCodeAt(0).toString(16));
  process.stdout.write(line + "\n", sent);
}

const commands = {
  clock: {
    description: "the time, here or in a time zone: /clock Asia/Tokyo",
    run: (args) => ({ action: "display", display: time(args) }),
  },
  stamp: {
    description: "insert the time into the editor",
    run: () => ({ action: "insert", insert: new Date().toISOString() }),
  },
};

function time(zone) {
  return new Intl.DateTimeFormat("en-GB", {
    dateStyle: "full",
    timeStyle: "long",
    timeZone: zone || undefined,
  }).format(new Date());
}

function handle(frame) {
  switch (frame.type) {
    case "hello_ack":
      for (const [name, { description }] of Object.entries(commands)) {
        send({ type: "register_command", name, description });
      }
      send({ type: "ready" });
      break;
    case "command_invoked":
      send({ type: "command_response", id: frame.id, ...response(frame) });
      break;
    case "shutdown":
      send({ type: "shutdown_ack" }, () => process.exit(0));
      break;
    // Other types are those of newer hosts.
  }
}

function response({ name, args }) {
  try {
    return commands[name].run(args ?? "");
  } catch (err) {
    return { action: "noop", error: `/${name}: ${err.message}` };
  }
}

// Lines end with \n and nothing else; readline would also split on U+2028.
let rest = "";
process.stdin.setEncoding("utf8");
process.stdin.on("data", (chunk) => {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    try {
      handle(JSON.parse(line));
    } catch (err) {
      console.error(`clock: ${err.message}: ${line.slice(0, 200)}`);
    }
  }
});
process.stdin.on("end", () => process.exit(0)); // zot has gone
process.stdout.on("error", () => process.exit(0));

send({ type: "hello", name: "clock", version: "1.0.0", capabilities: ["commands"] });
