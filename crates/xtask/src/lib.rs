//! The chores of developers and CI, as a library so that tests run the same checks: see [`tidy`], [`simulate`],
//! [`measure`] and [`pgo`].
//!
//! `tidy` knows each crate only by its files. Nothing in the product depends on it.
#![forbid(unsafe_code)]

mod cargo;
pub mod measure;
pub mod pgo;
pub mod simulate;
pub mod tidy;

pub use cargo::cargo;
