#!/usr/bin/env node
// scratchpad keeps notes that you and the model share: /note adds one, /notes
// shows them, and the model has the tool scratchpad. No build, no packages: zot
// runs this file. Its types are in comments, so that Node 20, which does not know
// TypeScript, runs it as well.

const fs = require("node:fs");
const path = require("node:path");

console.log = console.error; // stdout carries frames only

/** @type {string} where the notes are; known from hello_ack on */
let file = "";

/** @returns {string} all notes, one a line; "" when there are none */
function notes() {
  try {
    return fs.readFileSync(file, "utf8");
  } catch (err) {
    if (err.code === "ENOENT") return "";
    throw err;
  }
}

/** @param {string} text */
function append(text) {
  const line = text.trim().replace(/\s+/g, " ");
  if (line === "") throw new Error("a note needs a text");
  fs.appendFileSync(file, `- ${line}\n`);
}

const commands = {
  note: {
    description: "add a note: /note buy milk",
    run: (/** @type {string} */ args) => {
      append(args);
      return { action: "noop" };
    },
  },
  notes: {
    description: "show the notes",
    run: () => ({ action: "display", display: notes() || "no notes" }),
  },
};

const tool = {
  name: "scratchpad",
  description: "Read the notes that you share with the user, or append one.",
  schema: {
    type: "object",
    properties: {
      action: { type: "string", enum: ["read", "append"] },
      text: { type: "string", description: "of append: the note" },
    },
    required: ["action"],
  },
  /** @param {{action?: unknown, text?: unknown}} args as the model wrote them */
  run(args) {
    if (args.action === "append") {
      append(String(args.text ?? ""));
    } else if (args.action !== "read") {
      throw new Error(`unknown action ${JSON.stringify(args.action)}: read or append`);
    }
    return notes() || "no notes";
  },
};

/** Handles one frame. Types that are not here are those of newer hosts. */
function handle(frame) {
  switch (frame.type) {
    case "hello_ack":
      file = path.join(frame.data_dir, "notes.md");
      for (const [name, { description }] of Object.entries(commands)) {
        send({ type: "register_command", name, description });
      }
      send({ type: "register_tool", name: tool.name, description: tool.description, schema: tool.schema });
      send({ type: "ready" });
      break;
    case "command_invoked":
      send({ type: "command_response", id: frame.id, ...respond(frame.name, frame.args ?? "") });
      break;
    case "tool_call":
      send({ type: "tool_result", id: frame.id, ...call(frame.args ?? {}) });
      break;
    case "shutdown":
      send({ type: "shutdown_ack" }, () => process.exit(0));
      break;
  }
}

function respond(name, args) {
  try {
    return commands[name].run(args);
  } catch (err) {
    return { action: "noop", error: `/${name}: ${err.message}` };
  }
}

function call(args) {
  try {
    return { content: [{ type: "text", text: tool.run(args) }] };
  } catch (err) {
    return { content: [{ type: "text", text: err.message }], is_error: true };
  }
}

/** Writes one frame, as one line without U+2028 and U+2029. */
function send(frame, sent = undefined) {
  const line = JSON.stringify(frame).replace(/[\u2028\u2029]/g, (c) => "\\u" + c.charCodeAt(0).toString(16));
  process.stdout.write(line + "\n", sent);
}

let rest = "";
process.stdin.setEncoding("utf8");
process.stdin.on("data", (chunk) => {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop() ?? "";
  for (const line of lines) {
    try {
      handle(JSON.parse(line));
    } catch (err) {
      console.error(`scratchpad: ${err.message}: ${line.slice(0, 200)}`);
    }
  }
});
process.stdin.on("end", () => process.exit(0)); // zot has gone
process.stdout.on("error", () => process.exit(0));

send({ type: "hello", name: "scratchpad", version: "1.0.0", capabilities: ["commands", "tools"] });
