// go-net-http does a http.Get as most people write it: no retry, no timeout. The transport under it sends a request
// again by itself when a connection that it *reused* turns out to be dead, and only then (shouldRetryRequest).
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	reply, err := http.Get(os.Args[1] + "/v1/kv/hashidrill/retry")
	if err != nil {
		fail(err)
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil {
		fail(err)
	}
	if reply.StatusCode != http.StatusOK {
		fail(fmt.Errorf("%s", reply.Status))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
