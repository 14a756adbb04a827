package process

import "syscall"

// dieWithParent makes the kernel kill the program when the test process dies,
// which covers a test that panics or runs into its timeout.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
