// weather gives the model a tool. The weather is made up, so that it works
// without a network.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"strings"

	"zot/packages/agent/ext"
)

var schema = json.RawMessage(`{
	"type": "object",
	"properties": {"city": {"type": "string", "description": "Berlin, Lima or Oslo"}},
	"required": ["city"]
}`)

var reports = map[string]string{
	"berlin": "16°C, fog",
	"lima":   "22°C, overcast",
	"oslo":   "-3°C, snow",
}

func main() {
	e := ext.New("weather", "1.0.0")
	e.Tool("weather", "Get the current weather for a city.", schema, weather)
	if err := e.Run(); err != nil {
		log.Fatal(err)
	}
}

// weather answers one call. The arguments are what the model wrote: what is
// wrong with them goes back to it, in words that let it do better.
func weather(args json.RawMessage) ext.ToolResult {
	var in struct{ City string }
	if err := json.Unmarshal(args, &in); err != nil {
		return ext.TextErrorResult(fmt.Sprintf("city must be a string: %v", err))
	}
	city := strings.TrimSpace(in.City)
	if city == "" {
		return ext.TextErrorResult("city is missing")
	}
	report, ok := reports[strings.ToLower(city)]
	if !ok {
		return ext.TextErrorResult(fmt.Sprintf("no station in %s: there are Berlin, Lima and Oslo", city))
	}
	return ext.TextResult(city + ": " + report)
}
