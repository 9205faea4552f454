// Checks rendered manifests against the types of the Kubernetes API: an unknown or misspelled field,
// a field of another type and an unknown kind are errors.
//
//	helm template NAME CHART | go run .
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	checked, problems := 0, 0
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	documents := utilyaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "check:", err)
			os.Exit(1)
		}
		if isEmpty(string(document)) {
			continue
		}
		if err := check(strict, document); err != nil {
			fmt.Fprintf(os.Stderr, "check: %v\n%s\n", err, document)
			problems++
		}
		checked++
	}
	if checked == 0 {
		fmt.Fprintln(os.Stderr, "check: there is no manifest")
		os.Exit(1)
	}
	if problems > 0 {
		os.Exit(1)
	}
	fmt.Printf("%d manifests\n", checked)
}

func check(strict runtime.Serializer, document []byte) error {
	_, kind, err := strict.Decode(document, nil, nil)
	if err != nil && kind != nil {
		return fmt.Errorf("%s: %w", kind.Kind, err)
	}
	return err
}

// isEmpty reports whether a document has nothing but comments.
func isEmpty(document string) bool {
	for _, line := range strings.Split(document, "\n") {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}
