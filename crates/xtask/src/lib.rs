//! What a developer or CI runs, as a library so that tests run the same checks: see [`tidy`] and [`simulate`].
//!
//! Knows every crate by its files only, but the simulation, which it runs. Nothing in the product depends on it.
#![forbid(unsafe_code)]

pub mod simulate;
pub mod tidy;
