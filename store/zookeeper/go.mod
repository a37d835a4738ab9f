module github.com/gotenure/tenure/store/zookeeper

go 1.25.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/gotenure/tenure v0.0.0
)
