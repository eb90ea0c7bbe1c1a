//! Tests of the transports from outside: one binary, so that what they share is compiled once.

mod bypass;
mod common;
mod conformance;
mod libfabric;
mod simulated;
mod threads;
mod wire;
