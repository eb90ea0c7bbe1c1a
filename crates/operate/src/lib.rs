//! What operates a cluster, from outside of its nodes: as an operator does, through processes, certificates and clients.
//!
//! - [`dev`] runs a cluster on this machine, as processes of the `leeward` binary.
//! - [`replicas`] compares the replicas of a region while they serve, and repairs what is damaged.
//! - [`spread`] says how copies and primary roles are spread over the servers.
//!
//! `leeward` has a command for each, and `leeward-bench` measures the clusters that [`dev`] starts. This crate measures
//! nothing.
#![forbid(unsafe_code)]

pub mod dev;
pub mod replicas;
pub mod spread;
