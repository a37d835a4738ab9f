module github.com/gotenure/tenure

go 1.25.0
