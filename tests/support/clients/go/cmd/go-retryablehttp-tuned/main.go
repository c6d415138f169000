// go-retryablehttp-tuned is go-retryablehttp used well: three retries, jitter, and a timeout for each attempt.
// RateLimitLinearJitterBackoff waits 100 to 200 ms times the number of the retry, or what Retry-After says.
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
	client.RetryMax = 3
	client.RetryWaitMin = 100 * time.Millisecond
	client.RetryWaitMax = 200 * time.Millisecond
	client.Backoff = retryablehttp.RateLimitLinearJitterBackoff
	client.HTTPClient.Timeout = time.Second
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
