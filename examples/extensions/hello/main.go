// hello adds two slash commands: /hello lets the agent greet you, /cwd shows
// where you are.
package main

import (
	"log"

	"zot/packages/agent/ext"
)

func main() {
	e := ext.New("hello", "1.0.0")

	e.Command("hello", "say hi", func(args string) ext.Response {
		if args == "" {
			return ext.Prompt("Greet me in one short sentence.")
		}
		return ext.Prompt("Greet " + args + " in one short sentence.")
	})

	// What depends on the host is registered here: the process itself runs in
	// the extension's directory, not in the project's.
	e.OnHello(func(host ext.HostInfo) {
		e.Command("cwd", "show the current project directory", func(string) ext.Response {
			return ext.Display(host.CWD)
		})
	})

	if err := e.Run(); err != nil {
		log.Fatal(err)
	}
}
