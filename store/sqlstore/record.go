package sqlstore

import (
	"fmt"
	"time"

	"github.com/gotenure/tenure/driver"
)

// MaxValue is the greatest length of a published value in bytes. It bounds what a List of thousands of elections brings.
const MaxValue = 1 << 20

// A state is a record with what the store's clock makes of it.
type state struct {
	driver.Record
	remaining time.Duration // until the holder's session expires; 0 or less: it has expired
	holder    string        // the session in the row, even if it has expired
	member    string        // its member
}

// parse makes a state of the columns name, token, session, member, value, acquired_at, expires_at of the session or null, and the database's clock.
func (s *Store) parse(row Row) (state, error) {
	st := state{Record: driver.Record{Election: text(row[0])}}
	corrupt := func(field string, format string, v ...any) (state, error) {
		return st, fmt.Errorf("%s: %w: the row of election %q in %s: %s %s: correct or delete the row", s.d.Name, driver.ErrCorrupt,
			st.Election, s.d.Table("elections"), field, fmt.Sprintf(format, v...))
	}
	token, ok := integer(row[1])
	if !ok || token < 0 {
		return corrupt("token", "is %v, not a number of 0 or more", row[1])
	}
	st.Token = uint64(token)
	if err := driver.CheckName("name", st.Election); err != nil {
		return corrupt("name", "cannot be an election's (%v)", err)
	}
	member := text(row[3])
	if row[2] == nil {
		if member != "" {
			return corrupt("session", "is null although member is %q", member)
		}
		return st, nil
	}
	st.holder, st.member = text(row[2]), member
	switch {
	case st.holder == "":
		return corrupt("session", "is empty, where vacant is null")
	case member == "":
		return corrupt("member", "is empty although session is %q", st.holder)
	case token == 0:
		return corrupt("token", "is 0 although session is %q", st.holder)
	}
	if row[6] == nil { // the session is gone
		return st, nil
	}
	acquired, ok1 := integer(row[5])
	expires, ok2 := integer(row[6])
	now, ok3 := integer(row[7])
	if !ok3 {
		return st, fmt.Errorf("%s: whether the holder of election %q has expired is unknown: the database's clock says %v, which is no time", s.d.Name, st.Election, row[7])
	}
	if !ok1 || !ok2 {
		return corrupt("acquired_at, expires_at", "are %v, %v, not numbers", row[5], row[6])
	}
	st.remaining = time.Duration(expires-now) * time.Microsecond
	if st.remaining <= 0 {
		return st, nil
	}
	st.Leader, st.Session, st.Value = member, st.holder, blob(row[4])
	st.AcquiredAt, st.ExpiresAt = time.UnixMicro(acquired), time.UnixMicro(expires)
	return st, nil
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

func blob(v any) []byte {
	switch v := v.(type) {
	case string:
		return []byte(v)
	case []byte:
		return v
	}
	return nil
}

func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	case int:
		return int64(v), true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// number is integer for columns that this package computes.
func number(v any) int64 {
	n, _ := integer(v)
	return n
}
