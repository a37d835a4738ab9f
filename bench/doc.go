// Package bench measures what the documentation claims: make bench runs it.
//
// It has benchmarks only. Each prints a ratio or a number that does not depend on how fast the machine is, with the target in the unit's name: what is compared is
// measured in the same run, by turns. Nothing fails when a target is missed, for machines can be busy.
package bench
