//! The commands against a fake of the node: bytes in, bytes out.

mod cluster;
mod fake;
mod golden;
mod memory;
mod pipeline;
mod steps;
mod users;
