// Package filelog is the journal in a file: one JSON object per line,
//
//	{"subject":"moore.0.default.idle.planning.default.<run>","seq":1,"body":{…}}
//
// The body is the stored body byte for byte. One that is not JSON on a single
// line, without space around it and in valid UTF-8, is kept as "body_base64"
// instead. A large result that records refer to has its own line,
//
//	{"blob":{"bucket":"results_web","key":"…","size":300000,"sha256":"…"},"data":"…"}
//
// with its data in base64; the log consists of the other lines.
//
// Sequence numbers are those of the shard that the subject names; a file may hold
// the runs one after the other, so within a shard they need not be in order, but
// none may come twice.
//
// [Open] opens a file to be read, also while another process writes it. [Writer],
// [WriteFile] and [NewFile] write the records of any journal.
//
// After a crash the last line may be torn. A last line that has no newline but is a
// whole record counts as one. If it is not, it is omitted, and [File.Torn] says so.
package filelog
