//! What a developer or CI runs, as a library so that tests run the same checks: see [`tidy`] and [`simulate`].
//!
//! It knows each crate only by its files, except the simulation, which it runs. Nothing in the product depends on it.
#![forbid(unsafe_code)]

pub mod simulate;
pub mod tidy;
