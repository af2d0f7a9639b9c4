// CoreDNS with the seven plugins a dev cluster's Corefile names. The stock binary links the SDKs of three clouds, which
// costs more to compile on two cores than etcd does.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order of this list is the order in which a query passes the plugins, whatever order the Corefile has.
	dnsserver.Directives = []string{"bind", "ready", "errors", "cache", "loadbalance", "kubernetes", "template"}
	coremain.Run()
}
