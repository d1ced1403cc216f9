// Command crdcheck says whether the API server of the oldest release that etcdmaint supports would
// take these CustomResourceDefinitions: it asks that release's own validation, its estimate of what
// CEL rules cost included. One line for each fault; the exit code is 1 where there is one.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func main() {
	code := 0
	for _, path := range os.Args[1:] {
		faults, err := check(path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			os.Exit(2)
		}
		for _, fault := range faults {
			fmt.Printf("%s: %v\n", path, fault)
			code = 1
		}
	}
	os.Exit(code)
}

func check(path string) (field.ErrorList, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var stored v1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &stored); err != nil {
		return nil, err
	}
	v1.SetDefaults_CustomResourceDefinition(&stored)
	v1.SetDefaults_CustomResourceDefinitionSpec(&stored.Spec)
	var crd apiextensions.CustomResourceDefinition
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&stored, &crd, nil); err != nil {
		return nil, err
	}
	// What the registry fills in before it validates.
	for _, version := range crd.Spec.Versions {
		if version.Storage {
			crd.Status.StoredVersions = []string{version.Name}
		}
	}
	return validation.ValidateCustomResourceDefinition(context.Background(), &crd), nil
}
