package main

import "syscall"

// On Linux the orphans of our descendants come to us and not to init, which in
// a container may be a program that never reaps them. So we know when a group
// is empty and, at the end, who is left (prctl(2), PR_SET_CHILD_SUBREAPER). And
// a child is killed when we are (see fork).
func init() {
	const setChildSubreaper = 36
	syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0)
	detached.Pdeathsig = syscall.SIGKILL
}
