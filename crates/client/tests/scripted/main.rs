//! The client against scripted nodes: what it retries, which node it asks, and how scans continue.

mod connecting;
mod direct;
mod fake;
mod retries;
mod ringed;
mod scans;
mod stale;
