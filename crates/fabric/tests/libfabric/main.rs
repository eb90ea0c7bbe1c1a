//! Tests over libfabric from outside, in a binary of their own: a crash inside of that library ends no other test.
//!
//! What two nodes of one process do over its shm provider is not run unless it is asked for
//! (`cargo test -p leeward-fabric --test libfabric shm:: -- --ignored`): its endpoints of one process use each other's memory without
//! a count of who does, so that it crashes, in 1.17 at least, when one of two is closed. Nodes are processes, and these are tested.

/// Cases as tests of every provider.
macro_rules! every_transport {
    ($($case:ident),* $(,)?) => {
        tests_of!(tcp, crate::harness::LibfabricTcp; $($case),*);
        tests_of!(
            ignored "two endpoints of one process crash libfabric's shm provider when one is closed",
            shm, crate::harness::LibfabricShm; $($case),*
        );
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
#[path = "../shared/threads.rs"]
mod threads;
