// The baseline for starting: a program that answers one line and waits.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

func main() {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	fmt.Println(`{"type":"response","command":"ping","success":true,"data":{"pong":true}}`)
	io.Copy(io.Discard, in)
}
