package kubernetes

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gotenure/tenure/driver"
)

// Annotations that a Lease carries for this package. What they say counts only while the session among them is the holder: other clients leave
// them as they are when they take a Lease over.
const (
	annotationPrefix = "gotenure.github.io/"
	electionKey      = annotationPrefix + "election"     // whose name cannot be that of the Lease
	memberKey        = annotationPrefix + "member"       // of the holder
	sessionKey       = annotationPrefix + "session"      // is the holder, when these annotations are its
	tokenKey         = annotationPrefix + "token"        // of the term, or of the last one
	valueKey         = annotationPrefix + "value"        // when it is UTF-8
	binaryKey        = annotationPrefix + "value-base64" // when it is not
	askedKey         = annotationPrefix + "asked"        // the token of the term that somebody asked to be resigned
)

// timeFormat is that of MicroTime.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// A lease is one state of a Lease, or its absence.
type lease struct {
	name    string
	version uint64         // the resourceVersion; of the answer or the deletion when there is no Lease, 0 when that is not known
	object  map[string]any // as it came; nil: there is no Lease

	uid, holder          string
	duration             time.Duration
	acquired, renewed    time.Time
	acquireTime, renewal string // as they came
	transitions          int64
	annotations          map[string]string
}

func absent(name string, version uint64) *lease { return &lease{name: name, version: version} }

func (l *lease) exists() bool { return l.object != nil }

// parseVersion makes a number of a resourceVersion. Kubernetes promises since 1.35 (KEP-5504) that they are ever growing integers; they always were with etcd.
func parseVersion(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("kubernetes: %w: the API server's resourceVersion %q is not a positive integer, of which fencing tokens could be made: use another store", errInvalid, text)
	}
	return v, nil
}

func parseLease(text []byte) (*lease, error) {
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, fmt.Errorf("kubernetes: decode a Lease: %w", err)
	}
	return leaseOf(object)
}

func leaseOf(object map[string]any) (*lease, error) {
	metadata, spec := child(object, "metadata"), child(object, "spec")
	l := &lease{
		object: object, name: text(metadata, "name"), uid: text(metadata, "uid"), holder: text(spec, "holderIdentity"),
		duration:    time.Duration(number(spec, "leaseDurationSeconds")) * time.Second,
		acquireTime: text(spec, "acquireTime"), renewal: text(spec, "renewTime"), transitions: number(spec, "leaseTransitions"),
		annotations: make(map[string]string),
	}
	for key, value := range child(metadata, "annotations") {
		if s, ok := value.(string); ok {
			l.annotations[key] = s
		}
	}
	// Times are for people, but for one: see later.
	l.acquired, _ = time.Parse(time.RFC3339Nano, l.acquireTime)
	l.renewed, _ = time.Parse(time.RFC3339Nano, l.renewal)
	var err error
	l.version, err = parseVersion(text(metadata, "resourceVersion"))
	return l, err
}

func child(object map[string]any, key string) map[string]any {
	m, _ := object[key].(map[string]any)
	return m
}

func text(object map[string]any, key string) string {
	s, _ := object[key].(string)
	return s
}

func number(object map[string]any, key string) int64 {
	n, _ := object[key].(json.Number)
	i, err := n.Int64()
	if err != nil {
		return 0
	}
	return i
}

// election returns the name of the election that the Lease is of.
func (l *lease) election() (string, error) {
	if name, ok := l.annotations[electionKey]; ok {
		if LeaseName(name) != l.name {
			return "", l.corrupt("annotation %s is %q, whose Lease is %s", electionKey, name, LeaseName(name))
		}
		return name, nil
	}
	if !isPlain(l.name) {
		return "", l.corrupt("annotation %s is missing", electionKey)
	}
	return l.name, nil
}

func (l *lease) corrupt(format string, args ...any) error {
	return fmt.Errorf("kubernetes: %w: Lease %s: %s", driver.ErrCorrupt, l.name, fmt.Sprintf(format, args...))
}

// ours reports whether the holder is a session of this package.
func (l *lease) ours() bool { return l.holder != "" && l.annotations[sessionKey] == l.holder }

// token returns what the annotation says: 0 when there is none.
func (l *lease) token() (uint64, error) {
	s, ok := l.annotations[tokenKey]
	if !ok {
		return 0, nil
	}
	token, err := strconv.ParseUint(s, 10, 64)
	if err != nil || token == 0 {
		return 0, l.corrupt("annotation %s is %q, not a positive integer", tokenKey, s)
	}
	return token, nil
}

// check returns an error that wraps ErrCorrupt when no client could have written the Lease so.
func (l *lease) check() error {
	token, err := l.token()
	switch {
	case err != nil:
		return err
	case l.holder != "" && l.duration <= 0:
		return l.corrupt("holder %q has no leaseDurationSeconds", l.holder)
	case l.ours() && token == 0:
		return l.corrupt("annotation %s of holder %q is missing", tokenKey, l.holder)
	case l.ours() && l.annotations[memberKey] == "":
		return l.corrupt("annotation %s of holder %q is missing", memberKey, l.holder)
	}
	if _, err := base64.StdEncoding.DecodeString(l.annotations[binaryKey]); err != nil {
		return l.corrupt("annotation %s: %v", binaryKey, err)
	}
	return nil
}

// record returns the state for those who ask; expired says that the holder has been silent for too long.
func (l *lease) record(election string, expired bool) (driver.Record, error) {
	if !l.exists() {
		return driver.Record{Election: election}, nil
	}
	if err := l.check(); err != nil {
		return driver.Record{}, err
	}
	token, err := l.token()
	if err != nil {
		return driver.Record{}, err
	}
	if l.holder == "" || expired {
		return driver.Record{Election: election, Token: token}, nil
	}
	r := driver.Record{Election: election, Leader: l.holder, Session: l.holder, AcquiredAt: l.acquired, ExpiresAt: l.renewed.Add(l.duration)}
	if l.ours() {
		r.Leader, r.Token, r.Value = l.annotations[memberKey], token, l.value()
	}
	return r, nil
}

func (l *lease) value() []byte {
	if text, ok := l.annotations[binaryKey]; ok {
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil // check has said so
		}
		return value
	}
	if text, ok := l.annotations[valueKey]; ok {
		return []byte(text)
	}
	return nil
}

// life identifies what each renewal changes. Changes of labels and annotations do not prolong a lease.
func (l *lease) life() string {
	return fmt.Sprint(l.uid, " ", l.holder, " ", l.acquireTime, " ", l.renewal, " ", l.duration, " ", l.transitions)
}

// asked reports whether the term was asked to be resigned.
func (l *lease) asked() bool {
	asked, ok := l.annotations[askedKey]
	return ok && asked == l.annotations[tokenKey]
}

// edited returns the object with changes to its spec and annotations. The object itself, and all that is not changed, stays as it is.
func (l *lease) edited(change func(spec, annotations map[string]any)) map[string]any {
	object := maps.Clone(l.object)
	metadata := clone(child(object, "metadata"))
	annotations := clone(child(metadata, "annotations"))
	spec := clone(child(object, "spec"))
	change(spec, annotations)
	metadata["annotations"] = annotations
	object["metadata"], object["spec"] = metadata, spec
	return object
}

func clone(m map[string]any) map[string]any {
	if m == nil {
		return make(map[string]any)
	}
	return maps.Clone(m)
}

// later returns the time of a renewal. client-go compares whole seconds: a renewal within the second of the one before would not be seen, and the
// lease be taken over while its holder trusts it.
func (l *lease) later(now time.Time) string {
	if !l.renewed.IsZero() && now.Unix() <= l.renewed.Unix() {
		now = l.renewed.Truncate(time.Second).Add(time.Second)
	}
	return now.UTC().Format(timeFormat)
}

// created returns a new, vacant Lease.
func created(election string) map[string]any {
	metadata := map[string]any{"name": LeaseName(election)}
	if !isPlain(election) {
		metadata["annotations"] = map[string]any{electionKey: election}
	}
	return map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
		"spec": map[string]any{"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0},
	}
}

// taken returns the Lease as a session's. The token is the version that this write replaces, which no other write can replace.
func (l *lease) taken(s *session, election string, value []byte) map[string]any {
	now := time.Now()
	return l.edited(func(spec, annotations map[string]any) {
		spec["holderIdentity"], spec["leaseDurationSeconds"] = s.id, int64(s.ttl/time.Second)
		spec["acquireTime"], spec["renewTime"] = now.UTC().Format(timeFormat), l.later(now)
		spec["leaseTransitions"] = (l.transitions + 1) % math.MaxInt32
		annotations[sessionKey], annotations[memberKey] = s.id, s.member
		annotations[tokenKey] = strconv.FormatUint(l.version, 10)
		delete(annotations, askedKey)
		if !isPlain(election) {
			annotations[electionKey] = election
		}
		setValue(annotations, value)
	})
}

// renewedBy returns the Lease renewed by the session that holds it. publish nil: its value stays.
func (l *lease) renewedBy(s *session, publish *[]byte) map[string]any {
	return l.edited(func(spec, annotations map[string]any) {
		spec["leaseDurationSeconds"], spec["renewTime"] = int64(s.ttl/time.Second), l.later(time.Now())
		if publish != nil {
			setValue(annotations, *publish)
		}
	})
}

// vacated returns the Lease without holder, in the form of client-go's release. The last token stays.
func (l *lease) vacated() map[string]any {
	now := time.Now()
	return l.edited(func(spec, annotations map[string]any) {
		spec["holderIdentity"], spec["leaseDurationSeconds"] = "", 1
		spec["acquireTime"], spec["renewTime"] = now.UTC().Format(timeFormat), l.later(now)
		for _, key := range []string{sessionKey, memberKey, askedKey, valueKey, binaryKey} {
			delete(annotations, key)
		}
	})
}

func setValue(annotations map[string]any, value []byte) {
	delete(annotations, valueKey)
	delete(annotations, binaryKey)
	switch {
	case len(value) == 0:
	case utf8.Valid(value):
		annotations[valueKey] = string(value)
	default:
		annotations[binaryKey] = base64.StdEncoding.EncodeToString(value)
	}
}
