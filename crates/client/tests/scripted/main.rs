//! The client against nodes by script: what it retries, where it goes, and how scans go on.

mod connecting;
mod fake;
mod retries;
mod ringed;
mod scans;
mod stale;
