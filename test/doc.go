// Package test holds no code. The module around it has the tests of the root module that need third-party libraries: databases' drivers, real servers,
// state machines.
package test
