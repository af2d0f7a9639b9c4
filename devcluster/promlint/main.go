// Prometheus' own linter, the one behind `promtool check metrics`: an exposition on stdin, one `METRIC: problem` per line, exit 3 if any.
// promtool itself would compile every cloud's service discovery with it.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Printf("%s: %s\n", problem.Metric, problem.Text)
	}
	if len(problems) > 0 {
		os.Exit(3)
	}
}
