package kubernetes

import _ "embed"

//go:embed manifests/rbac.yaml
var manifest string

// Manifest returns what kubectl apply -n NAMESPACE -f takes to allow a service account named tenure what a member needs. Folder manifests has more: for one election only,
// for the pod's label, and an example.
func Manifest() string { return manifest }
