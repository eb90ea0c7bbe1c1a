//! The commands against a fake of the node: bytes in, bytes out.

mod absent;
mod cluster;
mod fake;
mod golden;
mod memory;
mod options;
mod pipeline;
mod steps;
mod users;
