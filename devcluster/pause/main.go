// Holds namespaces open: process 1 of the node's pid namespace and of every pod sandbox. It reaps what is re-parented to it
// (containerd's shims are) and ends on a signal, which process 1 would otherwise ignore.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			os.Exit(0)
		}
		reap()
	}
}
