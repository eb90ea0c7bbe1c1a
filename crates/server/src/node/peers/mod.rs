//! The other servers, as this node sees them.
//!
//! | file | holds |
//! |---|---|
//! | `messages` | what comes over the links |
//! | `leases` | lease grants, requested and given |
//! | `settings` | settings that are to be the same on all nodes |
//! | `admission`, `catch_up` | how many copies sync at a time, and how fast |
//!
//! Belongs to the node's thread.

pub(crate) mod admission;
pub(crate) mod catch_up;
pub(crate) mod leases;
mod messages;
pub(crate) mod settings;
