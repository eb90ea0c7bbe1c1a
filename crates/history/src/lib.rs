//! Histories of one key, and a checker of their linearizability. A history is linearizable if there is an order of its
//! operations, each somewhere between its call and its answer, in which a single register would have given these answers.
//!
//! - [`Operation`], [`Action`]: what clients note of their operations.
//! - [`check`]: the search for such an order.
//! - [`counterexample`]: the few answers that contradict each other in a history without such an order.
//!
//! Linearizability is local (Herlihy and Wing): a store is linearizable if each of its keys is. So keys are checked one by one.
//! Pure, any thread. The simulation and the chaos suite use it.
#![forbid(unsafe_code)]

mod action;
mod check;
mod counterexample;

pub use action::{Action, Operation, UNANSWERED};
pub use check::{Verdict, check};
pub use counterexample::counterexample;
