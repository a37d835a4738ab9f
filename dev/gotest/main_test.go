package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	tests := []struct {
		name, events, want string
		code               int
	}{
		{
			name: "what passing tests print is not shown",
			events: `{"Action":"output","Package":"p","Test":"A","Output":"=== RUN A\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`,
			want: "ok  \tp\t0.1s\n",
		},
		{
			name: "what failing tests print is shown",
			events: `{"Action":"output","Package":"p","Test":"A","Output":"want 1\n"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"pass","Package":"p","Test":"B"}
`,
			want: "want 1\nFAIL\tp\t0.1s\n",
		},
		{
			name: "a skipped subtest fails the run",
			events: `{"Action":"output","Package":"p","Test":"A/b","Output":"no server\n"}
{"Action":"skip","Package":"p","Test":"A/b"}
{"Action":"pass","Package":"p","Test":"A"}
`,
			want: "FAIL\tskipped, where nothing may be:\np\nno server\n",
			code: 1,
		},
		{
			name:   "a package without tests is not skipped, but no test at all is a failure",
			events: `{"Action":"skip","Package":"p"}` + "\n",
			want:   "FAIL\tno test ran\n",
			code:   1,
		},
		{
			name:   "errors of the build and lines that are no events are shown",
			events: `{"Action":"build-output","ImportPath":"p","Output":"undefined: x\n"}` + "\nplain\n" + `{"Action":"pass","Package":"p","Test":"A"}`,
			want:   "undefined: x\nplain\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tt.events)); err != nil {
				t.Fatal(err)
			}
			if code := r.end(); code != tt.code || out.String() != tt.want {
				t.Errorf("exit code %d and\n%swant %d and\n%s", code, out.String(), tt.code, tt.want)
			}
		})
	}
}
