//! Tests over libfabric from outside, in a binary of their own: a crash inside of that library ends no other test.
//!
//! Over its shm provider nodes are processes, as those of a cluster are (`processes`). Two in one process crash it:
//! there it has an endpoint use the memory of another without a count of its users, also when that one is closed
//! (`docs/design/limits.md`).

/// Cases as tests of the provider whose nodes may be in one process.
macro_rules! every_transport {
    ($($case:ident),* $(,)?) => {
        tests_of!(tcp, crate::harness::LibfabricTcp; $($case),*);
    };
}
macro_rules! threaded_transports {
    ($($case:ident),* $(,)?) => {
        every_transport!($($case),*);
    };
}

#[macro_use]
#[path = "../shared/common.rs"]
mod common;

#[path = "../shared/conformance.rs"]
mod conformance;
mod harness;
mod processes;
#[path = "../shared/readable.rs"]
mod readable;
#[path = "../shared/threads.rs"]
mod threads;
