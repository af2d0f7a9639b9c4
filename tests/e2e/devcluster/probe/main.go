// The only program in the test image: a server, and the questions a test asks from inside a pod.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func serve(address, text string) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s to %s\n", text, r.RemoteAddr) })
	check(http.ListenAndServe(address, nil))
}

// get prints status and body; `anonymous` trusts any certificate and shows no credentials.
func get(url string, anonymous bool) {
	pool := x509.NewCertPool()
	if authority, err := os.ReadFile(account + "ca.crt"); err == nil {
		pool.AppendCertsFromPEM(authority)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, InsecureSkipVerify: anonymous}}
	client := &http.Client{Transport: transport, Timeout: 300 * time.Second}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	check(err)
	if token, err := os.ReadFile(account + "token"); err == nil && !anonymous {
		request.Header.Set("Authorization", "Bearer "+string(token))
	}
	answer, err := client.Do(request)
	check(err)
	body, err := io.ReadAll(answer.Body)
	check(err)
	fmt.Printf("%d %s", answer.StatusCode, body)
}

func lookup(name string) {
	begin := time.Now()
	addresses, err := net.LookupHost(name)
	// A resolver that is not answered asks again, after 30 s where the test's pod says so.
	fmt.Printf("%v %v quick=%v\n", addresses, err, time.Since(begin) < 25*time.Second)
}

func read(file string) {
	content, err := os.ReadFile(file)
	check(err)
	fmt.Printf("%d %s", os.Getuid(), content)
}

// eat takes memory until the kernel ends it.
func eat() {
	var held [][]byte
	for {
		piece := make([]byte, 1<<20)
		for at := 0; at < len(piece); at += 4096 {
			piece[at] = 1
		}
		held = append(held, piece)
	}
}

func main() {
	switch arguments := os.Args[1:]; arguments[0] {
	case "serve":
		serve(arguments[1], arguments[2])
	case "get":
		get(arguments[1], false)
	case "get-anonymous":
		get(arguments[1], true)
	case "lookup":
		lookup(arguments[1])
	case "read":
		read(arguments[1])
	case "eat":
		eat()
	case "wait":
		time.Sleep(time.Hour)
	case "write":
		check(os.WriteFile(arguments[1], []byte("x"), 0o644))
	}
}
