//go:build !unix

package main

// Processes cannot be stopped here; they are only killed.
func (p *process) suspend() {}
func (p *process) resume()  {}
