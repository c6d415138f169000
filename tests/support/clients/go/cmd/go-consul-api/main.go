// go-consul-api reads a key with github.com/hashicorp/consul/api as it comes: one request, and no deadline on it.
package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/consul/api"
)

func main() {
	client, err := api.NewClient(api.DefaultConfig()) // reads CONSUL_HTTP_ADDR
	if err != nil {
		fail(err)
	}
	pair, _, err := client.KV().Get("hashidrill/retry", nil)
	if err != nil {
		fail(err)
	}
	if pair == nil {
		fail(fmt.Errorf("the key is not there"))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
