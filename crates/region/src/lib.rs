//! One region on a node, in any role, as a state machine.
//!
//! ```text
//!   Input --> RegionMachine --> Effects, in order
//!                  ^
//!                  '-- Facts: what it must know of the node and the cluster meanwhile
//! ```
//! A [`machine::RegionMachine`] sees no other region, no agent, no link, no socket and no thread. It handles an input and says
//! what is to be done. The node does that when the machine has returned, in that order ([`effects`]). What touches the device is a
//! [`job::Job`], which the node has run; its result is another input.
//!
//! | module | holds |
//! |---|---|
//! | [`client_memory`] | the account of the memory of a node's clients |
//! | [`request`], `wait_queue` | operations on their way, and those that wait |
//! | [`dedup`] | writes that are executed once |
//! | [`job`] | device work, and its results |
//! | [`input`] | what a region is told |
//! | [`safe_lsn_lines`] | memory in which backups read safe LSNs |
//! | [`effects`] | what a region asks for, and what it must know |
//! | [`serving`] | a region whose primary is here |
//! | [`machine`] | the role of this node in the region, and how it changes |
//!
//! Invariant: no method blocks. One thread at a time has a machine.

#![forbid(unsafe_code)]

pub mod client_memory;
pub mod dedup;
pub mod effects;
pub mod input;
pub mod job;
pub mod machine;
pub mod request;
pub mod safe_lsn_lines;
pub mod serving;
pub mod wait_queue;
