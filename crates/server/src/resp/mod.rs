//! The Redis serialization protocol, versions 2 and 3, as bytes: requests in, replies out. No sockets, no commands.
//!
//! [`Parser`] takes hostile bytes. Whatever a peer sends, the parser returns a command, an error that Redis clients
//! know, or that it needs more. It never holds more than [`MAX_COMMAND_BYTES`] of one command. [`Reply`] is a value
//! that encodes itself for either version.

mod reply;
mod request;

pub use reply::{Protocol, Reply};
pub(crate) use request::parse_integer;
pub use request::{ARGUMENT_BYTES, MAX_ARGUMENTS, MAX_COMMAND_BYTES, MAX_INLINE_BYTES, Parsed, Parser, ProtocolError};
