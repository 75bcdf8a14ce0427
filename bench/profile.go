package main

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
)

// beginProfiles begins the profiles that are wanted of a round; end writes them.
func beginProfiles(s settings, round int) (end func() error, err error) {
	if s.memprofile != "" {
		runtime.MemProfileRate = 512
	}
	if round < s.rounds {
		return func() error { return nil }, nil
	}
	stop := func() error { return nil }
	if s.cpuprofile != "" {
		file, err := os.Create(s.cpuprofile)
		if err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		stop = func() error {
			pprof.StopCPUProfile()
			return file.Close()
		}
	}
	return func() error { return errors.Join(stop(), writeAllocs(s.memprofile)) }, nil
}

// writeAllocs writes the profile of allocations, unless the file has no name.
func writeAllocs(name string) error {
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}
