// go-retryablehttp does a Get with github.com/hashicorp/go-retryablehttp: up to 4 retries of any error of the
// connection, any 5xx but 501, and 429; exponential without jitter; Retry-After honoured on 429 and 503. Its defaults,
// but for the first gap (300 ms in place of 1 s). There is no timeout in them.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

func main() {
	client := retryablehttp.NewClient()
	client.Logger = nil
	client.RetryWaitMin = 300 * time.Millisecond
	reply, err := client.Get(os.Args[1] + "/v1/kv/hashidrill/retry")
	if err != nil {
		fail(err)
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
