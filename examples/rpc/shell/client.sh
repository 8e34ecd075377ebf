#!/usr/bin/env bash
# A zot client in bash and jq. It sends one prompt, prints the answer on stdout,
# shows tool calls and usage on stderr, and fails when the run failed.
#
#   ./client.sh "run: ls" --provider script      further arguments go to zot rpc
#
# ZOT names the zot binary; ZOTCORE_RPC_TOKEN, when set, is sent in a hello.
set -u

die() {
	printf '%s\n' "$1" >&2
	exit "${2:-1}"
}

[ $# -ge 1 ] || die "usage: client.sh PROMPT [FLAGS OF zot rpc]" 2
zot=${ZOT:-zot}
command -v jq >/dev/null || die "client.sh needs jq"
command -v "$zot" >/dev/null || die "cannot start $zot: not found (ZOT names the zot binary)"
prompt=$1
shift

# zot finishes what it has accepted when its input ends, so the commands can be
# sent in one go. A client that sends more keeps the pipe open until `done`.
commands() {
	[ -z "${ZOTCORE_RPC_TOKEN:-}" ] || jq -cn '{id: "0", type: "hello", token: env.ZOTCORE_RPC_TOKEN}'
	jq -cn --arg message "$prompt" '{id: "1", type: "prompt", message: $message}'
}

# From frames to lines for the loop below; the first letter says what it is. Text
# keeps its line ends: "t" goes on in the line, "n" begins the next one.
frames='
def text: split("\n") | "t" + .[0], (.[1:][] | "n" + .);
def line($kind): $kind + gsub("\n"; " ");
(fromjson? // {type: "not JSON"}) |
if .type == "response" and (.success | not) then "\(.command): \(.error)" | line("r")
elif .type == "text_delta" then .delta | text
elif .type == "assistant_message" then if any(.content[]; .type == "text") then "n" else empty end
elif .type == "ext_display" then .text + "\n" | text
elif .type == "ext_notify" then "[\(.extension)] \(.message)" | line("s")
elif .type == "tool_call" then "> \(.name) \(.args | tojson)" | line("s")
elif .type == "usage" then .cumulative | "tokens: \(.input) in, \(.output) out; $\(.cost_usd)" | line("s")
elif .type == "turn_end" and (.stop == "error" or .stop == "aborted") then .error // .stop | line("f")
elif .type == "error" then .message | line("f")
elif .type == "done" then "d"
else empty end'

# jq -R reads raw lines, so a line ends with \n and nothing else.
commands | "$zot" rpc "$@" | jq -Rr --unbuffered "$frames" | {
	failure=
	while IFS= read -r line; do
		rest=${line:1}
		case $line in
		t*) printf '%s' "$rest" ;;
		n*) printf '\n%s' "$rest" ;;
		s*) printf '%s\n' "$rest" >&2 ;;
		r*) die "zot refused $rest" ;;
		f*) failure=$rest ;;
		d)
			[ -z "$failure" ] || die "the run failed: $failure"
			exit 0
			;;
		esac
	done
	die "zot ended before the run was done"
}
