package tenure_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/store/memory"
)

// Run work on whichever replica leads, until the work returns or the process is told to stop.
func ExampleMember_Lead() {
	ctx := context.Background()
	store := memory.New() // a program with several replicas opens one that they share, for instance with postgres.Open
	defer store.Close()
	member, err := tenure.Join(ctx, store, tenure.Config{ID: "worker-7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer member.Leave(ctx)

	err = member.Lead(ctx, "nightly-report", func(ctx context.Context, term *tenure.Term) error {
		for page := range 3 {
			if err := term.Check(); err != nil {
				return err // somebody else may lead: stop before the next unit of work
			}
			fmt.Printf("%s writes page %d as leader number %d\n", term.Member(), page, term.Token())
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// worker-7 writes page 0 as leader number 1
	// worker-7 writes page 1 as leader number 1
	// worker-7 writes page 2 as leader number 1
	// <nil>
}

// Campaign, Proclaim, Resign and Observe, as etcd's concurrency.Election has them.
func ExampleMember_Campaign() {
	ctx := context.Background()
	store := memory.New()
	defer store.Close()
	member, _ := tenure.Join(ctx, store, tenure.Config{ID: "a", Value: []byte("10.0.0.7:80")})
	defer member.Leave(ctx)

	term, err := member.Campaign(ctx, "primary") // waits
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = term.Publish(ctx, []byte("10.0.0.7:8080")) // proclaim
	for l := range member.Observe(ctx, "primary") {
		fmt.Printf("%s leads at %s\n", l.Leader, l.Value)
		break
	}
	_ = term.Resign(ctx)
	l, _ := member.Leader(ctx, "primary")
	fmt.Println("vacant:", l.Vacant())
	// Output:
	// a leads at 10.0.0.7:8080
	// vacant: true
}

// A leader latch, as Curator has it: start, ask whether one leads, close. Between the answer and what is done because of it, leadership may
// pass: ask the term, not the latch, where that matters.
func ExampleMember_Campaign_latch() {
	ctx := context.Background()
	store := memory.New()
	defer store.Close()
	member, _ := tenure.Join(ctx, store, tenure.Config{ID: "a"})
	defer member.Leave(ctx) // close

	leads := make(chan *tenure.Term)
	go func() { // start
		if term, err := member.Campaign(ctx, "latch"); err == nil {
			leads <- term
		}
	}()
	term := <-leads                                    // await
	fmt.Println("hasLeadership:", term.Check() == nil) // hasLeadership
	// Output: hasLeadership: true
}

// A leader selector with autoRequeue, as Curator has it: take leadership, work, give it to the next, and queue again.
func ExampleMember_Lead_selector() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store := memory.New()
	defer store.Close()
	member, _ := tenure.Join(ctx, store, tenure.Config{ID: "a"})
	defer member.Leave(context.Background())

	turns := 0
	for ctx.Err() == nil { // autoRequeue
		_ = member.Lead(ctx, "selector", func(context.Context, *tenure.Term) error { // takeLeadership
			if turns++; turns == 3 {
				cancel()
			}
			return nil
		})
	}
	fmt.Println("turns:", turns)
	// Output: turns: 3
}

// The three callbacks of client-go's leaderelection. OnStoppedLeading is called once for each OnStartedLeading, after it has returned.
func ExampleMember_Lead_callbacks() {
	onStartedLeading := func(ctx context.Context) { <-ctx.Done() } // the work
	onStoppedLeading := func() { fmt.Println("stopped") }
	onNewLeader := func(id string) { fmt.Println("new leader:", id) }

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store := memory.New()
	defer store.Close()
	member, _ := tenure.Join(ctx, store, tenure.Config{ID: "a"})
	defer member.Leave(context.Background())

	observed := make(chan struct{})
	go func() {
		defer close(observed)
		last := ""
		for l := range member.Observe(ctx, "controller") {
			if l.Err == nil && l.Leader != last && l.Leader != "" {
				last = l.Leader
				onNewLeader(l.Leader)
				cancel() // enough for an example
			}
		}
	}()
	err := member.Lead(ctx, "controller", func(ctx context.Context, _ *tenure.Term) error {
		defer onStoppedLeading()
		onStartedLeading(ctx)
		return nil
	})
	<-observed
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// new leader: a
	// stopped
	// true
}
