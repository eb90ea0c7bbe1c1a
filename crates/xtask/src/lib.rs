//! What a developer or CI runs, as a library so that tests run the same checks: see [`tidy`].
//!
//! Knows every crate by its files only. Nothing in the product depends on it.
#![forbid(unsafe_code)]

pub mod tidy;
