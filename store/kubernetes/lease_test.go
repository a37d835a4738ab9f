package kubernetes

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// Fields of a Lease that no server has yet, or only with a feature gate, are written back as they came.
func TestUnknownFieldsAreWrittenBack(t *testing.T) {
	text := `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","future":{"a":[1,12345678901234567890]},
		"metadata":{"name":"orders","resourceVersion":"41","labels":{"l":"1"},"annotations":{"n":"1"},"future":true},
		"spec":{"holderIdentity":"","leaseTransitions":6,"strategy":"OldestEmulationVersion","preferredHolder":"p","future":1.50}}`
	l, err := parseLease([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s := &session{id: "m_1", member: "m", ttl: 15 * time.Second}
	decode := func(object any) (m map[string]any) {
		t.Helper()
		text, err := json.Marshal(object)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	before := decode(l.object)
	for what, object := range map[string]map[string]any{
		"taken": l.taken(s, "orders", []byte("v")), "renewed": l.renewedBy(s, nil), "vacated": l.vacated(),
	} {
		got := decode(object)
		metadata, spec := child(got, "metadata"), child(got, "spec")
		if !reflect.DeepEqual(got["future"], before["future"]) || metadata["future"] != true || child(metadata, "labels")["l"] != "1" || child(metadata, "annotations")["n"] != "1" ||
			spec["future"] != 1.5 || spec["strategy"] != "OldestEmulationVersion" || spec["preferredHolder"] != "p" || metadata["resourceVersion"] != "41" {
			t.Errorf("%s: %v", what, got)
		}
	}
	if !reflect.DeepEqual(decode(l.object), before) {
		t.Errorf("an edit has changed the state that it was made from: %v", l.object)
	}
	if taken := decode(l.taken(s, "orders", nil)); child(taken, "spec")["leaseTransitions"] != 7.0 || child(child(taken, "metadata"), "annotations")[tokenKey] != "41" {
		t.Errorf("taken: %v; want 7 transitions and token 41", taken)
	}
}
