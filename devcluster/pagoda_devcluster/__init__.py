"""A whole Kubernetes on one machine for the demo and the tests. Development only: the product never imports it."""
