#!/usr/bin/env python3
"""A zot client in Python. It sends one prompt, prints the answer on stdout,
shows tool calls and usage on stderr, and fails when the run failed.

    ./client.py "run: ls" --provider script      further arguments go to zot rpc

ZOT names the zot binary; ZOTCORE_RPC_TOKEN, when set, is sent in a hello.
"""
import json
import os
import subprocess
import sys


def main(prompt, *flags):
    """Runs the prompt. Returns None, or why it failed."""
    zot = os.environ.get("ZOT") or "zot"
    try:
        process = subprocess.Popen([zot, "rpc", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as err:
        return f"cannot start {zot}: {err.strerror} (ZOT names the zot binary)"
    try:
        return converse(process, prompt)
    finally:
        close(process)


def converse(process, prompt):
    def send(**command):
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # zot has ended: what it said, or the end of its output, tells

    token = os.environ.get("ZOTCORE_RPC_TOKEN")
    if token:
        send(id="0", type="hello", token=token)  # the prompt waits for the answer
    else:
        send(id="1", type="prompt", message=prompt)

    failure = None
    for line in process.stdout:  # bytes, so a line ends with \n and nothing else
        try:
            frame = json.loads(line)
        except ValueError:
            note(f"not a frame: {line[:200]!r}")
            continue
        kind = frame.get("type")
        if kind == "response":
            if not frame["success"]:
                return f"zot refused {frame['command']}: {frame['error']}"
            if frame["id"] == "0":
                send(id="1", type="prompt", message=prompt)
        elif kind == "text_delta":
            say(frame["delta"])
        elif kind == "assistant_message":  # its text has come in deltas
            if any(block["type"] == "text" for block in frame["content"]):
                say("\n")
        elif kind == "ext_display":
            say(frame["text"] + "\n")
        elif kind == "ext_notify":
            note(f"[{frame['extension']}] {frame['message']}")
        elif kind == "tool_call":
            note(f"> {frame['name']} {json.dumps(frame['args'])}")
        elif kind == "usage":
            total = frame["cumulative"]
            note(f"tokens: {total['input']} in, {total['output']} out; ${total['cost_usd']:.4f}")
        elif kind == "turn_end" and frame["stop"] in ("error", "aborted"):
            failure = f"the run failed: {frame.get('error') or frame['stop']}"
        elif kind == "error":
            failure = f"the run failed: {frame['message']}"
        elif kind == "done":  # always comes, and is the last
            return failure
    return f"zot ended before the run was done (exit status {process.wait()})"


def close(process):
    """Lets zot go: the end of its input ends it."""
    try:
        process.stdin.close()
    except OSError:
        pass
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()


def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text):
    print(text, file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        note("usage: client.py PROMPT [FLAGS OF zot rpc]")
        sys.exit(2)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.stderr.reconfigure(encoding="utf-8", errors="replace")
    try:
        sys.exit(main(*sys.argv[1:]))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # zot ends when we do
