// CoreDNS with the plugins that a cluster's DNS needs and no cloud providers' libraries, which are most of a full build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which plugins see a query. As in CoreDNS's plugin.cfg, but with template last: it answers only what
	// the cluster's zones do not.
	dnsserver.Directives = []string{"health", "ready", "prometheus", "errors", "cache", "kubernetes", "template"}
	coremain.Run()
}
