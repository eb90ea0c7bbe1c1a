//! Histories of one key, and the checker of their linearizability: is there an order of a key's operations, each somewhere
//! between its call and its answer, in which a single register would have given these answers?
//!
//! - [`Operation`], [`Action`]: what clients note of what they did. - [`check`]: the search. - [`essence`]: of a history that
//!   no register could have, the few answers that contradict each other.
//!
//! Linearizability is local (Herlihy and Wing): a store is linearizable if each of its keys is, so keys are checked one by
//! one. Pure, any thread; the simulation and the chaos suite use it.
#![forbid(unsafe_code)]

mod action;
mod check;
mod essence;

pub use action::{Action, Operation, UNANSWERED};
pub use check::{Verdict, check};
pub use essence::essence;
