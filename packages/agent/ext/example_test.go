package ext_test

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"zot/packages/agent/ext"
)

// An extension with a command and a tool. What zot says to it is played from a
// file here; what it answers is the output below.
func Example() {
	conversation(`{"type":"hello_ack","protocol_version":1,"cwd":"/home/pat/project"}`,
		`{"type":"command_invoked","id":"1","name":"hello","args":"Berlin"}`,
		`{"type":"shutdown"}`)

	e := ext.New("hello", "1.0.0")
	e.Command("hello", "say hi", func(args string) ext.Response {
		return ext.Prompt("Greet " + args + " in one short sentence.")
	})
	e.Tool("weather", "Current weather for a city.",
		json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
		func(args json.RawMessage) ext.ToolResult {
			var in struct{ City string }
			if err := json.Unmarshal(args, &in); err != nil {
				return ext.TextErrorResult(err.Error())
			}
			return ext.TextResult(in.City + ": sunny")
		})
	if err := e.Run(); err != nil {
		log.Fatal(err)
	}

	// Output:
	// {"type":"hello","name":"hello","version":"1.0.0","capabilities":["commands","tools","panels"]}
	// {"type":"register_command","name":"hello","description":"say hi"}
	// {"type":"register_tool","name":"weather","description":"Current weather for a city.","schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}
	// {"type":"ready"}
	// {"type":"command_response","id":"1","action":"prompt","prompt":"Greet Berlin in one short sentence."}
	// {"type":"shutdown_ack"}
}

// conversation makes stdin a file of these lines.
func conversation(lines ...string) {
	f, err := os.CreateTemp("", "frames")
	if err != nil {
		log.Fatal(err)
	}
	os.Remove(f.Name()) // the open file stays, where the system allows it
	fmt.Fprintln(f, strings.Join(lines, "\n"))
	f.Seek(0, 0)
	os.Stdin = f
}
