//! The engine from outside: crashes, damage and replication's storage half, on simulated disks.

mod backup;
mod checkpoint;
mod crash;
mod damage;
mod encryption;
mod full;
mod ingest;
mod lost_history;
mod parts;
#[cfg(feature = "planted-bugs")]
mod planted;
mod range_digest;
mod reading;
mod replica;
mod split;
mod support;
mod two_layer;
mod verify;
