// Kubernetes' own encryption at rest, asked over a pipe: what it says of a configuration file and of
// stored values. One JSON object a line in, one a line out; byte strings are base64.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

type question struct {
	Config []byte // load this file; it answers what follows
	Key    []byte // else: the etcd key
	Stored []byte // and what lies under it, to read
	Plain  []byte // or a plaintext to write
	Write  bool
}

type answer struct {
	Error string
	Panic bool
	Value []byte
	Stale bool
}

func main() {
	folder, err := os.MkdirTemp("", "oracle")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "encryption.yaml")
	var secrets value.Transformer
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var q question
		if err := json.Unmarshal(line, &q); err != nil {
			panic(err)
		}
		out.Encode(ask(q, file, &secrets))
	}
}

func ask(q question, file string, secrets *value.Transformer) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{Error: fmt.Sprint(r), Panic: true}
		}
	}()
	ctx := context.Background()
	var err error
	switch {
	case q.Config != nil:
		if err = os.WriteFile(file, q.Config, 0o600); err == nil {
			var loaded *encryptionconfig.EncryptionConfiguration
			loaded, err = encryptionconfig.LoadEncryptionConfig(ctx, file, false, "oracle")
			if err == nil {
				*secrets = loaded.Transformers[schema.GroupResource{Resource: "secrets"}]
			}
		}
	case q.Write:
		a.Value, err = (*secrets).TransformToStorage(ctx, q.Plain, value.DefaultContext(q.Key))
	default:
		a.Value, a.Stale, err = (*secrets).TransformFromStorage(ctx, q.Stored, value.DefaultContext(q.Key))
	}
	if err != nil {
		a = answer{Error: err.Error()}
	}
	return a
}
