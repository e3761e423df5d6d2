// Package deploycheck has tests that hold what is in deploy for Kubernetes and
// Compose against their own libraries. These are large, and users of semel need
// none of them: the module is not in the workspace and is not released.
//
// What the chart makes of testdata/values.yaml is testdata/rendered.yaml. The tests
// of cmd/semel start a gateway by that.
package deploycheck
