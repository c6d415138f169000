// go-vault-api reads a path with github.com/hashicorp/vault/api as it comes: up to 3 requests, 1 to 1.5 s times the
// attempt's number apart, each of them on any 5xx, 412, 429 and any error of the connection; 60 s for all of it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/vault/api"
)

func main() {
	client, err := api.NewClient(api.DefaultConfig()) // reads VAULT_ADDR, VAULT_MAX_RETRIES and VAULT_CLIENT_TIMEOUT
	if err != nil {
		fail(err)
	}
	// the layer below Logical(): the same retries, and no opinion on the body
	//nolint:staticcheck // Sys() calls it too
	reply, err := client.RawRequestWithContext(context.Background(), client.NewRequest("GET", "/v1/kv/hashidrill/retry"))
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
