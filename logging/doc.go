// Package logging keeps the log from disturbing the work: lines never wait for
// whoever reads them.
package logging
