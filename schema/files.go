package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// ReadFiles reads YAML files, and the files *.yaml and *.yml of folders, without their subfolders. The
// problems of all of them are reported together.
func ReadFiles(paths []string) (*File, error) {
	files, err := FilesOf(paths)
	if err != nil {
		return nil, err
	}
	all := &File{}
	var wrong Problems
	for _, path := range files {
		f, err := readFile(path)
		var problems Problems
		if errors.As(err, &problems) {
			wrong = append(wrong, problems...)
			continue
		}
		if err != nil {
			return nil, err
		}
		all.Services = append(all.Services, f.Services...)
		all.Regions = append(all.Regions, f.Regions...)
		all.Deployments = append(all.Deployments, f.Deployments...)
		all.Rights = all.Rights.With(f.Rights)
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	return all, nil
}

func readFile(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	f, err := ParseFile(path, in)
	if err != nil {
		return nil, err
	}
	if err := f.Rights.Check(); err != nil { // with file and line, which the registry does not know
		return nil, err
	}
	if len(f.Services)+len(f.Regions)+len(f.Deployments) == 0 && f.Rights == nil {
		return nil, fmt.Errorf("%s: there is no region, service, deployment or right in it", path)
	}
	return f, nil
}

// FilesOf returns the files that paths name, in the order of the paths: a folder stands for its files *.yaml
// and *.yml in the order of their names. A folder without any is an error.
func FilesOf(paths []string) (files []string, err error) {
	for _, path := range paths {
		about, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !about.IsDir() {
			files = append(files, path)
			continue
		}
		in, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		in = slices.DeleteFunc(in, func(e fs.DirEntry) bool {
			ends := filepath.Ext(e.Name())
			return e.IsDir() || ends != ".yaml" && ends != ".yml"
		})
		if len(in) == 0 {
			return nil, fmt.Errorf("%s: there is no file *.yaml or *.yml in it", path)
		}
		for _, e := range in {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}
