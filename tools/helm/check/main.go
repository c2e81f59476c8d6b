// Command check decodes rendered manifests strictly into the types of Kubernetes and of the Prometheus
// operator: an unknown kind, an unknown or repeated field, and a value of another type are errors.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	if err := check(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(files []string) error {
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), monitoringv1.AddToScheme(types)); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	var wrong error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		checked := 0
		for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if json, err := yaml.ToJSON(document); err == nil && string(json) == "null" {
				continue
			}
			if _, _, err := decoder.Decode(document, nil, nil); err != nil {
				source, _, _ := bytes.Cut(bytes.TrimSpace(document), []byte("\n"))
				wrong = errors.Join(wrong, fmt.Errorf("%s: %s: %w", file, source, err))
			}
			checked++
		}
		if checked == 0 {
			wrong = errors.Join(wrong, fmt.Errorf("%s has no manifests", file))
		}
		fmt.Printf("%s: %d manifests\n", file, checked)
	}
	return wrong
}
