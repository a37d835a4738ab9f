// Package policy holds, as tests, the rules of this repository that a program can check. It has no code of its own.
package policy
