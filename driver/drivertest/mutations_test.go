package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/gotenure/tenure/driver"
)

// mutations are the wrong drivers.
var mutations = []mutation{
	{
		name: "every session has the same ID", cases: "SessionsDiffer",
		open: func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
			s, err := m.Store.Open(ctx, member, ttl)
			return namedSession{s, "the one"}, err
		},
	},
	{
		name: "a bad TTL is corrected in silence", cases: "BoundsOfTTL",
		open: func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
			return m.Store.Open(ctx, member, max(m.Info().MinTTL, min(ttl, m.Info().MaxTTL)))
		},
	},
	{
		name: "the error of a bad TTL names nothing", cases: "BoundsOfTTL",
		open: func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
			s, err := m.Store.Open(ctx, member, ttl)
			if errors.Is(err, driver.ErrInvalid) {
				err = fmt.Errorf("%w TTL", driver.ErrInvalid)
			}
			return s, err
		},
	},
	{
		name: "tokens start again when the record is deleted", cases: "TokensGrowAcrossDeletion|DeletionIsFollowedByAnotherTerm|AwaitWakesOnDeletion",
		deleteRecord: func(c *common, election string) {
			r, _ := c.place.Get(context.Background(), election)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tokens[election] = r.Token
		},
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			r, err := s.Session.Acquire(ctx, bid)
			s.m.mu.Lock()
			defer s.m.mu.Unlock()
			r.Token -= s.m.tokens[bid.Election]
			return r, err
		},
	},
	{
		name: "tokens restart with each handle", cases: "TokensGrowAcrossHandles",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			r, err := s.Session.Acquire(ctx, bid)
			if err == nil {
				r.Token = uint64(len(bid.Election))
			}
			return r, err
		},
	},
	{
		name: "a session that takes over keeps the token", cases: "TokensGrow|RenewalNeverRevives|CloseFreesAtOnce",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			r, err := s.Session.Acquire(ctx, bid)
			s.m.mu.Lock()
			defer s.m.mu.Unlock()
			if s.m.tokens[bid.Election] == 0 {
				s.m.tokens[bid.Election] = r.Token
			}
			r.Token = s.m.tokens[bid.Election]
			return r, err
		},
	},
	{
		name: "acquire is not idempotent", cases: "AcquireIsIdempotent",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if holder, r := s.m.holder(ctx, bid.Election); holder == s {
				_ = s.Session.Release(ctx, bid.Election, r.Token)
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "acquire takes from whoever holds", cases: "HeldTellsTheHolder|SameMemberTwice|Contention|AwaitEndsWithItsContext|ClosedStore|EndedContext|WatchSeesTransfer|CloseEndsCalls|NothingLeaks",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if holder, r := s.m.holder(ctx, bid.Election); holder != s && r.Held() {
				s.m.place.OverwriteRecord(bid.Election, s.ID())
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "acquire looks and then takes, in two steps", cases: "Contention",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			_, r := s.m.holder(ctx, bid.Election)
			if !r.Held() {
				time.Sleep(time.Millisecond) // virtual
				s.m.place.OverwriteRecord(bid.Election, s.ID())
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "sessions of one member share what they hold", cases: "SameMemberTwice",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			r, err := s.Session.Acquire(ctx, bid)
			if errors.Is(err, driver.ErrHeld) && r.Leader == s.member {
				return r, nil
			}
			return r, err
		},
	},
	{
		name: "renewing one session of a member renews all", cases: "SameMemberTwice",
		keepAlive: func(s *mutantSession, ctx context.Context) (driver.Grant, error) {
			s.m.mu.Lock()
			var others []*mutantSession
			for _, other := range s.m.sessions {
				if other != s && other.member == s.member {
					others = append(others, other)
				}
			}
			s.m.mu.Unlock()
			for _, other := range others {
				_, _ = other.Session.KeepAlive(ctx)
			}
			return s.Session.KeepAlive(ctx)
		},
	},
	{
		name: "names fall together by case", cases: "HardNames|List",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			bid.Election = strings.ToLower(bid.Election)
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "bad names are cleaned", cases: "BadNamesAreRefused",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if driver.CheckName("election", bid.Election) != nil {
				bid.Election = "cleaned"
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "values are text", cases: "Values",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			bid.Value = []byte(strings.ToValidUTF8(string(bid.Value), "?"))
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "long values are cut", cases: "LongValue",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			bid.Value = bid.Value[:min(len(bid.Value), 64<<10)]
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "acquire does not publish", cases: "AcquireIsIdempotent|WatchIsSilentOnRenewal",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if holder, r := s.m.holder(ctx, bid.Election); holder == s {
				return r, nil
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "an attempt takes a place in the queue", cases: "AttemptTakesNoPlace",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			bid.Queue = true
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "there is no queue, whatever Info says", cases: "QueueIsFirstInFirstOut|QueuePassesOverTheDead|LateReleaseKeepsThePlace|GrantTellsOfUnclaimedTransfer",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			bid.Queue = false
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "asking again loses the place", cases: "QueueIsFirstInFirstOut",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if holder, _ := s.m.holder(ctx, bid.Election); holder != s {
				_ = s.Session.Release(ctx, bid.Election, 0)
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "the refused is not told by whom", cases: "HeldTellsTheHolder",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			r, err := s.Session.Acquire(ctx, bid)
			if err != nil {
				r = driver.Record{Election: bid.Election}
			}
			return r, err
		},
	},
	{
		name: "acquire of a vacant election fails the first time", cases: "AcquireTakesVacant|UnknownElectionIsVacant",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if _, r := s.m.holder(ctx, bid.Election); r.Token == 0 {
				return r, errors.New("no such election")
			}
			return s.Session.Acquire(ctx, bid)
		},
		get: func(m *mutant, ctx context.Context, election string) (driver.Record, error) {
			r, err := m.Store.Get(ctx, election)
			if err == nil && r.Token == 0 {
				err = errors.New("no such election")
			}
			return r, err
		},
	},
	{
		name: "release ignores the token", cases: "ReleaseIsScopedToTheTerm|LateReleaseKeepsThePlace",
		release: func(s *mutantSession, ctx context.Context, election string, _ uint64) error {
			return s.Session.Release(ctx, election, 0)
		},
	},
	{
		name: "release ignores the session", cases: "ReleaseFrees|ReleaseOfNothing|ReleaseIsScopedToTheTerm|SameMemberTwice|RenewalNeverRevives|GrantTellsOfDeletion|GrantTellsOfOverwriting|DroppedSessionIsLost",
		release: func(s *mutantSession, ctx context.Context, election string, _ uint64) error {
			if holder, r := s.m.holder(ctx, election); holder != nil && r.Held() {
				return holder.Session.Release(ctx, election, r.Token)
			}
			return s.Session.Release(ctx, election, 0)
		},
	},
	{
		name: "releasing without a token keeps the place in the queue", cases: "ReleaseZeroFromAnyState|QueuePassesOverTheDead|CancelledCallsLeaveNothing",
		release: func(s *mutantSession, ctx context.Context, election string, token uint64) error {
			holder, r := s.m.holder(ctx, election)
			switch {
			case token != 0:
				return s.Session.Release(ctx, election, token)
			case holder == s:
				return s.Session.Release(ctx, election, r.Token)
			}
			return nil
		},
	},
	{
		name: "a failed release is not tried again", cases: "FailedReleaseIsRetried",
		release: func(s *mutantSession, ctx context.Context, election string, token uint64) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.told[election] == 1 {
				s.told[election] = 0
				return nil
			}
			err := s.Session.Release(ctx, election, token)
			if err != nil {
				s.told[election] = 1
			}
			return err
		},
	},
	{
		name: "a failed renewal opens another session", cases: "RenewalNeverRevives|UnrenewedSessionLapses|DeadSessionDoesNotWin|DroppedSessionIsLost|AwaitWakesOnExpiry",
		keepAlive: func(s *mutantSession, ctx context.Context) (driver.Grant, error) {
			grant, err := s.Session.KeepAlive(ctx)
			if errors.Is(err, driver.ErrSessionLost) {
				if again, err := s.m.Store.Open(ctx, s.member, s.ttl); err == nil {
					s.Session = again
					return again.KeepAlive(ctx)
				}
			}
			return grant, err
		},
	},
	{
		name: "renewals do nothing", cases: "KeepAliveKeeps|SessionIsSharedByElections",
		keepAlive: func(s *mutantSession, ctx context.Context) (driver.Grant, error) {
			return driver.Grant{TTL: s.ttl}, nil
		},
	},
	{
		name: "nobody is told what is held", cases: "GrantTellsOfDeletion|GrantTellsOfTheOneDeleted|GrantTellsOfOverwriting|GrantTellsOfUnclaimedTransfer",
		keepAlive: func(s *mutantSession, ctx context.Context) (driver.Grant, error) {
			grant, err := s.Session.KeepAlive(ctx)
			grant.Holds = nil
			return grant, err
		},
	},
	{
		name: "nobody is told of a namesake", cases: "NamesakeIsTold",
		keepAlive: func(s *mutantSession, ctx context.Context) (driver.Grant, error) {
			grant, err := s.Session.KeepAlive(ctx)
			grant.Namesake = ""
			return grant, err
		},
	},
	{
		name: "a request to resign is told once", cases: "AskedToResign",
		keepAlive: func(s *mutantSession, ctx context.Context) (driver.Grant, error) {
			grant, err := s.Session.KeepAlive(ctx)
			if maps.Equal(grant.Asked, s.told) {
				grant.Asked = nil
			} else {
				s.told = grant.Asked
			}
			return grant, err
		},
	},
	{
		name: "a request to resign hits whoever holds", cases: "AskedToResign",
		ask: func(m *mutant, ctx context.Context, election string, _ uint64) error {
			_, r := m.holder(ctx, election)
			return m.Store.Ask(ctx, election, r.Token)
		},
	},
	{
		name: "nothing is pushed, whatever Info says", cases: "AskedToResign|Info",
		changed: func(*mutantSession) <-chan struct{} { return nil },
	},
	{
		name: "sessions lapse too early", cases: "UnrenewedSessionLapses|AwaitWakesOnExpiry|WatchSeesExpiry|SameMemberTwice",
		open: func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
			if ttl > 4*m.Info().MinTTL {
				ttl /= 2
			}
			return m.Store.Open(ctx, member, ttl)
		},
	},
	{
		name: "sessions never lapse", cases: "UnrenewedSessionLapses|AwaitWakesOnExpiry|WatchSeesExpiry|TokensGrow|ClosedStoreLetsSessionsLapse|ExpiryServesTheQueue|SessionIsSharedByElections",
		open: func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
			return m.Store.Open(ctx, member, m.Info().MaxTTL)
		},
	},
	{
		name: "a dead session keeps its place in the queue", cases: "QueuePassesOverTheDead|DeadSessionDoesNotWin",
		open: func(m *mutant, ctx context.Context, member string, ttl time.Duration) (driver.Session, error) {
			s, err := m.Store.Open(ctx, member, m.Info().MaxTTL)
			if err != nil {
				return nil, err
			}
			return &undead{Session: s, until: time.Now().Add(ttl), ttl: ttl}, nil
		},
	},
	{
		name: "closing a session leaves it to lapse", cases: "CloseFreesAtOnce|CloseFreesEverything|WatchSeesTransfer|AwaitRemembers|NamesakeIsTold|CloseEndsCalls|EndedContext",
		closeSession: func(*mutantSession, context.Context) error { return nil },
	},
	{
		name: "a wait forgets what came before it", cases: "AwaitRemembers",
		await: func(s *mutantSession, ctx context.Context, election string) error {
			first := true
			for r, err := range s.m.Store.Watch(ctx, election) {
				if err != nil {
					return err
				}
				if !first && (!r.Held() || r.Session == s.ID()) {
					return nil
				}
				first = false
			}
			return ctx.Err()
		},
	},
	{
		name: "a vacancy wakes everybody", cases: "ReleaseWakesTheNextOnly",
		await: func(s *mutantSession, ctx context.Context, election string) error {
			first := true
			for _, err := range s.m.Store.Watch(ctx, election) {
				if err != nil || !first {
					return err
				}
				first = false
			}
			return ctx.Err()
		},
	},
	{
		name: "a wait for a channel outlives its session", cases: "WakeEndsWithTheSession",
		wake: func(*mutantSession, string) <-chan struct{} { return make(chan struct{}, 1) },
	},
	{
		name: "a vacancy is found by a poll, once a minute", cases: "AwaitWakesOnRelease|AwaitIsPushed|AwaitWakesOnExpiry|AwaitWakesOnDeletion",
		await: func(s *mutantSession, ctx context.Context, election string) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	},
	{
		name: "a wait does not end with its context", cases: "AwaitEndsWithItsContext|EndedContext",
		await: func(s *mutantSession, ctx context.Context, election string) error {
			for s.Session.Await(context.WithoutCancel(ctx), election) != nil {
				return ctx.Err()
			}
			return nil
		},
	},
	{
		name: "a read is one write behind", cases: "ReadYourWrites|AcquireTakesVacant",
		get: func(m *mutant, ctx context.Context, election string) (driver.Record, error) {
			r, err := m.Store.Get(ctx, election)
			m.mu.Lock()
			defer m.mu.Unlock()
			last, ok := m.records[election]
			m.records[election] = r
			if !ok {
				last = driver.Record{Election: election}
			}
			return last, err
		},
	},
	{
		name: "prefixes have wildcards", cases: "List",
		list: func(m *mutant, ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
			pattern := regexp.MustCompile("^" + strings.ReplaceAll(strings.ReplaceAll(regexp.QuoteMeta(prefix), "%", ".*"), "_", "."))
			return filtered(m.Store.List(ctx, ""), func(r driver.Record) bool { return pattern.MatchString(r.Election) })
		},
	},
	{
		name: "a watch does not see vacancies", cases: "WatchSeesExpiry|WatchSeesTransfer|WatchSeesDeletion|WatchSeesEveryChange",
		watch: func(m *mutant, ctx context.Context, election string) iter.Seq2[driver.Record, error] {
			first := true
			return filtered(m.Store.Watch(ctx, election), func(r driver.Record) bool {
				keep := first || r.Held()
				first = false
				return keep
			})
		},
	},
	{
		name: "a watch yields an old state after a newer one", cases: "WatchSeesEveryChange",
		watch: func(m *mutant, ctx context.Context, election string) iter.Seq2[driver.Record, error] {
			return func(yield func(driver.Record, error) bool) {
				var first driver.Record
				for r, err := range m.Store.Watch(ctx, election) {
					if first.Token != 0 && err == nil && r.Held() && !yield(first, nil) || !yield(r, err) {
						return
					}
					if first.Token == 0 {
						first = r
					}
				}
			}
		},
	},
	{
		name: "a watch yields renewals", cases: "WatchIsSilentOnRenewal",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			if holder, r := s.m.holder(ctx, bid.Election); holder == s && string(r.Value) == string(bid.Value) {
				_, _ = s.Session.Acquire(ctx, driver.Bid{Election: bid.Election, Value: append(bid.Value, 0)})
				time.Sleep(time.Millisecond) // virtual
			}
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "a watch is polled, whatever Info says", cases: "WatchIsPushed",
		watch: func(m *mutant, ctx context.Context, election string) iter.Seq2[driver.Record, error] {
			return func(yield func(driver.Record, error) bool) {
				var last driver.Record
				for ctx.Err() == nil {
					r, err := m.Store.Get(ctx, election)
					if err != nil || r.Token != last.Token || r.Session != last.Session || string(r.Value) != string(last.Value) || last.Election == "" {
						if last = r; !yield(r, err) || err != nil {
							return
						}
					}
					select {
					case <-time.After(5 * time.Second):
					case <-ctx.Done():
					case <-m.quit:
					}
				}
				yield(driver.Record{}, ctx.Err())
			}
		},
	},
	{
		name: "a watch ends without a word", cases: "WatchEnds|EndedContext",
		watch: func(m *mutant, ctx context.Context, election string) iter.Seq2[driver.Record, error] {
			return func(yield func(driver.Record, error) bool) {
				for r, err := range m.Store.Watch(ctx, election) {
					if err != nil || !yield(r, nil) {
						return
					}
				}
			}
		},
	},
	{
		name: "a closed store goes on", cases: "ClosedStore|WatchEnds",
		close: func(*mutant) error { return nil },
	},
	{
		name: "each attempt leaks a goroutine", cases: "NothingLeaks",
		acquire: func(s *mutantSession, ctx context.Context, bid driver.Bid) (driver.Record, error) {
			go func() { <-s.m.quit }()
			return s.Session.Acquire(ctx, bid)
		},
	},
	{
		name: "a list ends at a corrupt record", cases: "CorruptRecordIsNamed",
		get: corruptGet, list: corruptList(true), watch: corruptWatch, acquire: corruptAcquire, corrupt: true,
	},
	{
		name: "a corrupt record is taken over", cases: "CorruptRecordIsNamed",
		get: corruptGet, list: corruptList(false), watch: corruptWatch, corrupt: true,
	},
}

// A namedSession has an ID that its driver made up.
type namedSession struct {
	driver.Session
	id string
}

func (s namedSession) ID() string { return s.id }

// An undead session knows when it is over, and the store does not.
type undead struct {
	driver.Session
	until time.Time
	ttl   time.Duration
}

func (s *undead) KeepAlive(ctx context.Context) (driver.Grant, error) {
	if time.Now().After(s.until) {
		return driver.Grant{}, driver.ErrSessionLost
	}
	s.until = time.Now().Add(s.ttl)
	grant, err := s.Session.KeepAlive(ctx)
	grant.TTL = s.ttl
	return grant, err
}
