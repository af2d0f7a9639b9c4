// Pins the OCI registry that tests fetch from, apart from ../go.mod so that its dependencies choose no version of what Kubernetes is compiled from.
module pagoda.dev/devcluster/registry

go 1.25.0

require github.com/google/go-containerregistry v0.22.1
