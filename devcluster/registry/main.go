// An OCI registry in memory on loopback, for tests: go-containerregistry's own. Prints its address and serves until it is killed.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(listener.Addr())
	quiet := log.New(io.Discard, "", 0)
	fmt.Fprintln(os.Stderr, http.Serve(listener, registry.New(registry.Logger(quiet))))
	os.Exit(1)
}
