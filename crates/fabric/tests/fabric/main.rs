//! Tests of the transports from outside: one binary, so that what they share is compiled once. Those of libfabric are
//! another.

/// Cases as tests of every transport.
macro_rules! every_transport {
    ($($case:ident),* $(,)?) => {
        tests_of!(tcp, crate::harness::Tcp; $($case),*);
        tests_of!(tls, crate::harness::Tls; $($case),*);
        tests_of!(shm, crate::harness::Shm; $($case),*);
        tests_of!(sim, crate::harness::Sim; $($case),*);
    };
}
/// Cases as tests of the transports that have threads.
macro_rules! threaded_transports {
    ($($case:ident),* $(,)?) => {
        tests_of!(tcp, crate::harness::Tcp; $($case),*);
        tests_of!(tls, crate::harness::Tls; $($case),*);
        tests_of!(shm, crate::harness::Shm; $($case),*);
    };
}

#[macro_use]
#[path = "../shared/common.rs"]
mod common;

mod bypass;
#[path = "../shared/conformance.rs"]
mod conformance;
mod harness;
#[path = "../shared/readable.rs"]
mod readable;
mod simulated;
mod sink;
#[path = "../shared/threads.rs"]
mod threads;
mod tls;
mod wire;
